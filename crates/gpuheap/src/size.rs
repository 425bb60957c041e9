//! Sizes in bytes, as people write them.

use std::fmt;

/// A size in an option or the environment, in bytes or as a percentage of the device's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Size {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the device's memory, above 0 and at most 100.
    Percent(f64),
}

/// Error for a text that is not a size. The message has the text and the accepted forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError {
    text: String,
    reason: &'static str,
}

impl Size {
    /// Parses a size such as `10000`, `100M`, `1.5GiB` or `50%`.
    ///
    /// `k`, `M`, `G`, `T`, `P`, `E` are powers of 1000; `Ki`, `Mi`, `Gi`, `Ti`, `Pi`, `Ei` are
    /// powers of 1024. Each may end with `B`, and the case of letters does not matter. A fractional
    /// number needs a unit.
    ///
    /// # Errors
    ///
    /// The text has another form, or the size is zero.
    pub fn parse(text: &str) -> Result<Size, SizeError> {
        let fail = |reason| SizeError { text: text.to_owned(), reason };
        let trimmed = text.trim();
        let split =
            trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = (&trimmed[..split], trimmed[split..].trim_start());
        if trimmed.starts_with('-') {
            return Err(fail("it is negative"));
        }
        if number.is_empty() || number == "." || number.matches('.').count() > 1 {
            return Err(fail("it does not start with a number"));
        }
        let value: f64 = number.parse().map_err(|_| fail("it does not start with a number"))?;
        if unit == "%" {
            return match value {
                v if v > 0.0 && v <= 100.0 => Ok(Size::Percent(v)),
                _ => Err(fail("a percentage is above 0 and at most 100")),
            };
        }
        let factor = factor(unit).ok_or_else(|| fail("it has an unknown unit"))?;
        if factor == 1 && number.contains('.') {
            return Err(fail("a fraction of a byte"));
        }
        // Whole numbers are parsed exactly: a u64 does not fit into an f64.
        let bytes = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(factor),
            Err(_) => {
                Some(value * factor as f64).filter(|b| *b < u64::MAX as f64).map(|b| b as u64)
            }
        };
        match bytes {
            None => Err(fail("it is larger than any memory")),
            Some(0) => Err(fail("it is zero")),
            Some(bytes) => Ok(Size::Bytes(bytes)),
        }
    }

    /// Returns the size in bytes, for a device with `total` bytes.
    pub fn to_bytes(self, total: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) => (total as f64 * percent / 100.0) as u64,
        }
    }
}

impl SizeError {
    /// Returns the reason for the rejection, for callers that accept fewer texts than
    /// [`Size::parse`] and give their own advice.
    pub fn reason(&self) -> &'static str {
        self.reason
    }
}

fn factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (letter, base) = match unit.strip_suffix('i') {
        Some(letter) if !letter.is_empty() => (letter, 1024_u64),
        _ => (unit, 1000),
    };
    let power = match letter {
        "" => return Some(1),
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        "e" => 6,
        _ => return None,
    };
    Some(base.pow(power))
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a size: {}; write bytes (10000), a unit (100M, 1.5GiB) or a share of the device (50%)",
            self.text, self.reason
        )
    }
}

impl std::error::Error for SizeError {}

/// Bytes, displayed as `8 bytes` or, from 1 KiB, as `9.69 GiB`. `{:#}` rounds up, so that a limit
/// typed as displayed is never below the exact size.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        gpuheap_text::Amount(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn size_parses_units() {
        for (text, bytes) in [
            ("10000", 10_000),
            ("100M", 100_000_000),
            ("1.5GiB", 1_610_612_736),
            ("512 MiB", 536_870_912),
            ("2k", 2000),
            ("2KB", 2000),
            ("7b", 7),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(Size::parse(text), Ok(Size::Bytes(bytes)), "{text}");
        }
        assert_eq!(Size::parse("50%"), Ok(Size::Percent(50.0)));
        assert_eq!(Size::Percent(50.0).to_bytes(1 << 30), 1 << 29);
    }

    #[test]
    fn invalid_size_is_refused_with_reason() {
        for (text, reason) in [
            ("12XB", "unknown unit"),
            ("-1", "negative"),
            ("0", "zero"),
            ("0.0001kB", "zero"),
            ("", "number"),
            ("GiB", "number"),
            ("1.2.3M", "number"),
            ("1.5", "fraction"),
            ("0%", "percentage"),
            ("101%", "percentage"),
            ("99999999999GiB", "larger"),
            ("18446744073709551616", "larger"),
            ("1iB", "unit"),
        ] {
            let error = Size::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.contains("50%"), "{error}");
        }
    }

    proptest! {
        #![proptest_config(gpuheap_pool::testing::cases(256))]
        #[test]
        fn displayed_bytes_parse_back(
            power in 10_u32..60,
            beside in -600_i64..600,
            wide in any::<u64>(),
        ) {
            for bytes in [(1_u64 << power).saturating_add_signed(beside << (power - 10)), wide >> (60 - power)] {
                for (text, up) in [(Bytes(bytes).to_string(), false), (format!("{:#}", Bytes(bytes)), true)] {
                    let (number, unit) = text.split_once(' ').unwrap();
                    prop_assert!(number.parse::<f64>().unwrap() < 1024.0, "{}: {}", bytes, text);
                    if unit.starts_with("byte") {
                        continue;
                    }
                    let read = Size::parse(&text).unwrap().to_bytes(0);
                    prop_assert!(read.abs_diff(bytes) <= bytes / 100 + 1, "{}: {}", bytes, text);
                    prop_assert!(!up || read >= bytes, "{}: {}", bytes, text);
                }
            }
        }
    }

    #[test]
    fn rounded_up_bytes_parse_to_enough() {
        let step = if cfg!(miri) { 97 } else { 1 };
        let small = (1..3000).step_by(step);
        for bytes in small.clone().chain(small.map(|n| n * 1_234_567)).chain([9678 << 20]) {
            let text = format!("{:#}", Bytes(bytes));
            let read = Size::parse(text.trim_end_matches(" bytes").trim_end_matches(" byte"));
            let read = read.unwrap().to_bytes(0);
            assert!((bytes..=bytes + bytes / 100 + 1).contains(&read), "{bytes}: {text}");
        }
        assert_eq!(format!("{:#}", Bytes(9678 << 20)), "9.46 GiB");
        assert_eq!(format!("{:#}", Bytes(8 << 30)), "8 GiB");
    }
}
