//! Parses the fields of a row.

/// Parses a whole number in decimals.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    number(text, 10)
}

/// Parses an address as C's `%p` prints it: `0x7f…`, with or without the prefix, or `(nil)`.
pub(super) fn pointer(text: &[u8]) -> Option<u64> {
    address(text, 16)
}

/// Parses a stream's handle, like [`pointer`]. A handle without a prefix is decimal, because RMM's
/// own reader expects decimals. RMM's writer leaves the prefix out only for `0`.
pub(super) fn stream(text: &[u8]) -> Option<u64> {
    address(text, 10)
}

fn address(text: &[u8], base_without_prefix: u32) -> Option<u64> {
    match text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X")) {
        Some(digits) => number(digits, 16),
        None if text == b"(nil)" => Some(0),
        None => number(text, base_without_prefix),
    }
}

/// Parses `HH:MM:SS.uuuuuu` as microseconds since midnight. Older logs have a colon before the
/// microseconds.
pub(super) fn time_of_day_us(text: &[u8]) -> Option<u64> {
    let &[h1, h2, b':', m1, m2, b':', s1, s2, b'.' | b':', ref micros @ ..] = text else {
        return None;
    };
    let two = |tens, ones| number(&[tens, ones], 10);
    let (hours, minutes, seconds) = (two(h1, h2)?, two(m1, m2)?, two(s1, s2)?);
    // 60 is a leap second.
    if micros.len() != 6 || hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    Some(((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + number(micros, 10)?)
}

fn number(digits: &[u8], base: u32) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut value = 0_u64;
    for &byte in digits {
        let digit = char::from(byte).to_digit(base)?;
        value = value.checked_mul(u64::from(base))?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stop_at_64_bits() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(decimal(b"18446744073709551616"), None);
        assert_eq!(pointer(b"0xffffffffffffffff"), Some(u64::MAX));
        assert_eq!(pointer(b"0x10000000000000000"), None);
    }

    #[test]
    fn signs_and_spaces_are_not_numbers() {
        for text in ["", "+1", "-1", "1 ", "1.0", "1e3", "0x10", "１"] {
            assert_eq!(decimal(text.as_bytes()), None, "{text}");
        }
        for text in ["0x", "0x0x1", "nil", "(null)", "-0x1"] {
            assert_eq!(pointer(text.as_bytes()), None, "{text}");
            assert_eq!(stream(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn null_is_read_in_three_spellings() {
        for text in ["0", "0x0", "(nil)", "0X0"] {
            assert_eq!(stream(text.as_bytes()), Some(0), "{text}");
            assert_eq!(pointer(text.as_bytes()), Some(0), "{text}");
        }
    }

    #[test]
    fn bare_pointer_is_hexadecimal_stream_decimal() {
        assert_eq!(pointer(b"10"), Some(16));
        assert_eq!(stream(b"10"), Some(10));
        assert_eq!(stream(b"1a"), None);
    }

    #[test]
    fn time_has_two_spellings() {
        let us = ((23 * 60 + 59) * 60 + 58) * 1_000_000 + 7;
        assert_eq!(time_of_day_us(b"23:59:58.000007"), Some(us));
        assert_eq!(time_of_day_us(b"23:59:58:000007"), Some(us));
        for text in ["24:00:00.000000", "00:60:00.000000", "0:00:00.000000", "00:00:00.00000", ""] {
            assert_eq!(time_of_day_us(text.as_bytes()), None, "{text}");
        }
    }
}
