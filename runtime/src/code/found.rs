//! Where a host pc lies.

use instrument::recipe::Recipe;

/// Where a host pc lies.
pub struct Found<'a> {
    /// Original start of the unit.
    pub start: u64,
    /// Number window of the unit's id.
    pub window: u32,
    /// Live address of its code.
    pub entry: u64,
    pub end: u64,
    pub recipe: Recipe<'a>,
}
