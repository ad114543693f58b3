//! The ahead-of-time code that the output carries.

use crate::jit::Found;
use crate::process::process;
use abi::image::ImageHeader;
use instrument::recipe::Recipe;

/// `count` items of `T` at window-relative address `at`.
fn table<T>(at: u64, count: u64) -> &'static [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the rewriter put the table there, and the kernel mapped it for as long as we live.
    unsafe { core::slice::from_raw_parts((process().window + at) as *const T, count as usize) }
}

fn header() -> &'static ImageHeader {
    &process().header
}

/// The ahead-of-time translation that begins at original address `target`.
pub fn entry(target: u64) -> Option<u64> {
    let process = process();
    let relative = target.wrapping_sub(process.window);
    if relative >= header().image_end {
        return None;
    }
    let entries: &[[u32; 2]] = table(header().entries, header().entry_count);
    let i = entries.binary_search_by_key(&(relative as u32), |e| e[0]).ok()?;
    Some(process.window + u64::from(entries[i][1]))
}

/// Whether `pc` lies in ahead-of-time code.
pub fn contains(pc: u64) -> bool {
    let relative = pc.wrapping_sub(process().window).wrapping_sub(header().code);
    relative < header().code_len
}

/// The ahead-of-time unit whose code `pc` lies in.
pub fn find(pc: u64) -> Option<Found<'static>> {
    if !contains(pc) {
        return None;
    }
    let code = process().window + header().code;
    let offset = (pc - code) as u32;
    let units: &[[u32; 2]] = table(header().units, header().unit_count + 1);
    let i = units.partition_point(|u| u[0] <= offset).checked_sub(1)?;
    let addresses: &[u32] = table(header().unit_addresses, header().unit_count);
    let recipes: &[u8] = table(header().recipes, header().recipes_len);
    Some(Found {
        start: process().window + u64::from(*addresses.get(i)?),
        window: abi::unit::unit_id(header().first_window, i as u32) >> 16,
        entry: code + u64::from(units[i][0]),
        end: code + u64::from(units[i + 1][0]),
        recipe: Recipe::new(recipes.get(units[i][1] as usize..units[i + 1][1] as usize)?)?,
    })
}
