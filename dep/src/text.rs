//! Numbers as text, quickly; and words for reasons.

use abi::event::Loss;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// `0x` and the number in hexadecimal, at the start of `buffer`.
#[inline]
pub fn hex_digits(buffer: &mut [u8; 18], value: u64) -> &[u8] {
    let digits = (16 - (value | 1).leading_zeros() as usize / 4).max(1);
    buffer[..2].copy_from_slice(b"0x");
    let mut rest = value;
    for slot in buffer[2..2 + digits].iter_mut().rev() {
        *slot = DIGITS[(rest & 15) as usize];
        rest >>= 4;
    }
    &buffer[..2 + digits]
}

/// Appends `0x` and the number in hexadecimal.
#[inline]
pub fn hex(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(hex_digits(&mut [0; 18], value));
}

/// The two hexadecimal digits of a byte.
#[inline]
pub fn pair(byte: u8) -> [u8; 2] {
    [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)])
}

/// Appends the number in decimal.
#[inline]
pub fn decimal(out: &mut Vec<u8>, value: u64) {
    // Most are a size.
    if value < 10 {
        return out.push(DIGITS[(value % 10) as usize]);
    }
    let mut buffer = [0; 20];
    let mut at = buffer.len();
    let mut rest = value;
    while rest > 0 {
        at -= 1;
        buffer[at] = DIGITS[(rest % 10) as usize];
        rest /= 10;
    }
    out.extend_from_slice(&buffer[at..]);
}

/// Nanoseconds as seconds.
pub fn seconds(ns: u64) -> String {
    format!("{}.{:03} s", ns / 1_000_000_000, ns / 1_000_000 % 1000)
}

/// Words of a command line, each as a shell takes it.
pub fn command_line<'a>(words: impl Iterator<Item = &'a [u8]>) -> String {
    let words = words.map(|word| {
        let text = String::from_utf8_lossy(word);
        let plain = |c: char| c.is_alphanumeric() || "_-+=:,./@%^~".contains(c);
        match !text.is_empty() && text.chars().all(plain) {
            true => text.into_owned(),
            // One line, whatever is in it.
            false if text.contains(char::is_control) => format!("$'{}'", text.escape_default()),
            false => format!("'{}'", text.replace('\'', "'\\''")),
        }
    });
    words.collect::<Vec<String>>().join(" ")
}

/// Why recording stopped, in words.
pub fn loss_reason(reason: Loss) -> &'static str {
    match reason {
        Loss::DiskFull => "disk full",
        Loss::FileSizeLimit => "file size limit",
        Loss::IoError => "I/O error",
        Loss::NoMemory => "no memory",
        Loss::LogFull => "log full",
        Loss::Versions => "code changed more often than the format can name",
        Loss::Paused => "paused",
        Loss::Unknown(_) => "unknown reason",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_can_be_typed_again() {
        let line = |words: &[&str]| command_line(words.iter().map(|word| word.as_bytes()));
        assert_eq!(line(&["sh", "-c", "a | b", "", "it's"]), r"sh -c 'a | b' '' 'it'\''s'");
        assert_eq!(line(&["printf", "a\nb"]), r"printf $'a\nb'");
        assert_eq!(seconds(1_002_999_999), "1.002 s");
    }

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
}
