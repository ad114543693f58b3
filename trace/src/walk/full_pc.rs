//! The `full-pc` format: each unit writes its address and version.

use super::compiled::{CompiledUnits, Trouble};
use super::course::{Course, Decoder, Found};
use crate::open::Chunk;
use crate::units::Units;
use abi::trace::outside;

#[derive(Default)]
pub(super) struct FullPc;

impl Decoder for FullPc {
    fn begin(&mut self, _chunk: &Chunk, _units: &Units) {}

    #[inline]
    fn next(
        &mut self,
        course: &mut Course<'_>,
        units: &mut CompiledUnits<'_>,
    ) -> Result<Found, Trouble> {
        let stream = &mut course.stream;
        let word = stream.peek().map_or(0, |&bytes| u64::from_le_bytes(bytes));
        if word == 0 {
            stream.may_end()?;
            return Ok(Found::End);
        }
        if outside::is_mark(word) {
            stream.skip(8);
            // A mark is smaller than 16.
            return Ok(Found::Outside(word.to_le_bytes()[0]));
        }
        let number = units.by_word(word)?;
        stream.skip(8);
        Ok(Found::Unit(number))
    }
}
