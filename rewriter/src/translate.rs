//! The seam to the instrumenter.

use abi::options::Options;
use lifter::discover::Program;
use lifter::image::Image;

/// Translated code with everything that is said about it; see [`abi::image::ImageHeader`].
#[derive(Clone, Debug, Default)]
pub struct Translated {
    pub code: Vec<u8>,
    /// Original and translated address (low halves), ascending.
    pub entries: Vec<(u32, u32)>,
    /// Start of code and of recipe of each unit, and one entry more that closes the last.
    pub units: Vec<(u32, u32)>,
    /// Original address of each unit.
    pub unit_addresses: Vec<u32>,
    pub recipes: Vec<u8>,
    pub descriptions: Vec<u8>,
}

/// Translates the whole program for code that starts at `code_base`.
pub fn translate(
    _program: &Program,
    _image: &Image,
    _options: Options,
    _code_base: u64,
) -> Translated {
    Translated::default()
}
