//! Numbers as text, quickly.

use abi::event::Loss;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Appends `0x` and the number in hexadecimal.
#[inline]
pub fn hex(out: &mut Vec<u8>, value: u64) {
    let digits = (16 - (value | 1).leading_zeros() as usize / 4).max(1);
    let mut buffer = [0; 18];
    buffer[..2].copy_from_slice(b"0x");
    let mut rest = value;
    for slot in buffer[2..2 + digits].iter_mut().rev() {
        *slot = DIGITS[(rest & 15) as usize];
        rest >>= 4;
    }
    out.extend_from_slice(&buffer[..2 + digits]);
}

/// Appends the number in decimal.
#[inline]
pub fn decimal(out: &mut Vec<u8>, value: u64) {
    if value < 10 {
        return out.push(b'0' + value as u8);
    }
    let mut buffer = [0; 20];
    let mut at = buffer.len();
    let mut rest = value;
    while rest > 0 {
        at -= 1;
        buffer[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out.extend_from_slice(&buffer[at..]);
}

/// A JSON string.
pub fn json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Why recording stopped, in words.
pub fn loss_reason(reason: Loss) -> &'static str {
    match reason {
        Loss::DiskFull => "disk full",
        Loss::FileSizeLimit => "file size limit",
        Loss::IoError => "I/O error",
        Loss::NoMemory => "no memory",
        Loss::LogFull => "log full",
        Loss::Paused => "paused",
        Loss::Unknown(_) => "unknown reason",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_the_library_prints_them() {
        for value in [0, 1, 9, 10, 15, 16, 255, 256, 4095, 0x1234_5678_9abc, u64::MAX] {
            let (mut h, mut d) = (Vec::new(), Vec::new());
            hex(&mut h, value);
            decimal(&mut d, value);
            assert_eq!(String::from_utf8_lossy(&h), format!("{value:#x}"));
            assert_eq!(String::from_utf8_lossy(&d), format!("{value}"));
        }
    }

    #[test]
    fn json_strings_escape() {
        assert_eq!(json_string("a\"b\\\n"), "\"a\\\"b\\\\\\u000a\"");
    }
}
