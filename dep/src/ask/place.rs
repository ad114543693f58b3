//! Places as they are typed and shown.

use abi::steer::Position;
use serde::Serialize;

use crate::row::Hex;
use crate::symbols::Symbols;
use crate::text::{decimal, hex};

/// A place, in the words of `monitor when` in `dep debug`.
#[derive(Clone, Serialize)]
pub struct Place {
    tid: u32,
    turn: u64,
    input: u64,
    pc: Hex,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
}

impl Place {
    pub fn new(tid: u32, at: &Position, symbols: &mut Symbols) -> Place {
        let function = symbols.name(abi::ids::LiveAddr(at.pc));
        Place { tid, turn: at.turns, input: at.entry, pc: Hex(at.pc), function }
    }

    /// `TID turn N, input N, pc 0x12 name+0x3`
    pub fn text(&self, out: &mut Vec<u8>) {
        decimal(out, u64::from(self.tid));
        out.extend_from_slice(format!(" turn {}, input {}, pc ", self.turn, self.input).as_bytes());
        hex(out, self.pc.0);
        out.push(b' ');
        out.extend_from_slice(self.function.as_deref().unwrap_or("?").as_bytes());
    }
}

/// A number: decimal, or hexadecimal behind `0x`.
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// An address: a number, a symbol, or a symbol and a distance. The second: how large what has that name is.
pub fn address(text: &str, symbols: &mut Symbols) -> Result<(u64, Option<u64>), String> {
    let text = text.trim();
    if let Some(address) = number(text) {
        return Ok((address, None));
    }
    match text.rsplit_once('+') {
        Some((name, distance)) => {
            let distance = number(distance.trim()).ok_or(format!("{distance}: no number"))?;
            Ok((symbols.find(name.trim())?.0.wrapping_add(distance), None))
        }
        None => symbols.find(text).map(|(address, size)| (address, Some(size))),
    }
}

/// Turns, as `seek` of `dep debug` takes them; `all`: of the whole recording.
pub fn turn(text: &str, all: u64) -> Result<u64, String> {
    match text.strip_suffix('%') {
        _ if text == "begin" => Ok(0),
        _ if text == "end" => Ok(u64::MAX),
        Some(percent) => {
            let percent: f64 = percent.parse().map_err(|e| format!("{text}: {e}"))?;
            Ok((all as f64 * percent.clamp(0.0, 100.0) / 100.0) as u64)
        }
        None => number(text).ok_or(format!("{text}: expected TURN, PERCENT%, begin or end")),
    }
}
