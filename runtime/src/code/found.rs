//! Where a host pc lies.

use abi::ids::{CodeAddr, LiveAddr};
use instrument::recipe::Recipe;

/// Longest recipe that is copied.
pub const MAX_RECIPE: usize = 1024;

/// Where a host pc lies.
pub struct Found<'a> {
    /// Original start of the unit.
    pub start: LiveAddr,
    /// Number window of the unit's id.
    pub window: u32,
    /// The tag in that window of a unit that writes none.
    pub silent: Option<u16>,
    /// Live address of its code.
    pub entry: CodeAddr,
    pub end: CodeAddr,
    pub recipe: Recipe<'a>,
}
