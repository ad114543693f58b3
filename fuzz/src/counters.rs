//! The execution counters of a build with coverage, read in place.

/// Classes of counts that have been seen, for each counter.
#[derive(Default)]
pub struct Seen(Vec<u8>);

impl Seen {
    /// Forgets the counts of what ran before.
    pub fn start(&self) {
        counters().fill(0);
    }

    /// Whether any counter is in a class in which it has never been.
    pub fn is_new(&mut self) -> bool {
        let counters = counters();
        self.0.resize(counters.len(), 0);
        let mut new = false;
        for (seen, &count) in
            self.0.iter_mut().zip(counters.iter()).filter(|(_, &count)| count != 0)
        {
            // 1, 2, 3, 4 to 7, 8 to 15, 16 to 31, 32 to 127, more.
            let class: u8 = match count {
                1..=3 => 1 << (count - 1),
                4..=7 => 8,
                8..=15 => 16,
                16..=31 => 32,
                32..=127 => 64,
                _ => 128,
            };
            new |= *seen & class == 0;
            *seen |= class;
        }
        new
    }

    /// Counters that were ever not zero.
    pub fn reached(&self) -> usize {
        self.0.iter().filter(|&&seen| seen != 0).count()
    }
}

#[cfg(fuzz_counters)]
fn counters() -> &'static mut [u64] {
    extern "C" {
        fn __llvm_profile_begin_counters() -> *mut u64;
        fn __llvm_profile_end_counters() -> *mut u64;
    }
    // SAFETY: the profiling runtime's own section of counters. Instrumented code of other threads
    // is over when this is called, and what this one adds meanwhile does no harm.
    unsafe {
        let (start, end) = (__llvm_profile_begin_counters(), __llvm_profile_end_counters());
        std::slice::from_raw_parts_mut(start, end.offset_from(start) as usize)
    }
}

#[cfg(not(fuzz_counters))]
fn counters() -> &'static mut [u64] {
    &mut []
}
