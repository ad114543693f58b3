//! The vector registers of a thread that a signal has interrupted.

/// A vector state in the kernel's frame.
#[derive(Clone, Copy)]
pub struct InterruptedVectors {
    at: u64,
    len: usize,
}

impl InterruptedVectors {
    /// # Safety
    /// Nobody is told of it any more when `floating` is gone.
    pub unsafe fn new(floating: &[u8]) -> InterruptedVectors {
        InterruptedVectors { at: floating.as_ptr() as u64, len: floating.len() }
    }

    /// Copies as much of it as has room.
    pub fn copy_to(self, area: &mut [u8]) {
        // SAFETY: the frame is there while this is, as promised.
        let floating = unsafe { core::slice::from_raw_parts(self.at as *const u8, self.len) };
        area.iter_mut().zip(floating).for_each(|(to, &from)| *to = from);
    }
}
