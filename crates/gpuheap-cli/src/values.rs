//! Values of options that several commands share.

use std::time::Duration;

use gpuheap::Size;
use gpuheap::emu::Profile;

/// Granule of devices, in bytes.
pub(crate) const GRANULE: u64 = 2 << 20;

/// Number of bytes, with the text that the user typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TypedSize {
    pub(crate) bytes: u64,
    pub(crate) typed: String,
}

/// Parses a size in bytes. Refuses a share such as 80%.
pub(crate) fn bytes(text: &str) -> Result<TypedSize, String> {
    refuse_option(text)?;
    let reason = match Size::parse(text) {
        Ok(Size::Bytes(bytes)) if bytes >= GRANULE => {
            return Ok(TypedSize { bytes, typed: text.trim().to_owned() });
        }
        Ok(Size::Bytes(_)) => "it is less than the 2 MiB that a device hands out at a time",
        Ok(_) => "it is a share",
        Err(error) => error.reason(),
    };
    Err(format!("'{text}' is not a size: {reason}; write bytes (10000) or a unit (100M, 1.5GiB)"))
}

/// Parses a size: bytes or a share.
pub(crate) fn size(text: &str) -> Result<Size, String> {
    refuse_option(text)?;
    Size::parse(text).map_err(|error| error.to_string())
}

/// Refuses a text that begins with two hyphens: the text is the next option, so the value is
/// missing. Allows one hyphen, so that the value's parser gives `-1` a specific error.
pub(crate) fn refuse_option(text: &str) -> Result<(), String> {
    if text.starts_with("--") {
        return Err(format!("the value is missing before '{text}'"));
    }
    Ok(())
}

/// Parses the name of an emulated device.
pub(crate) fn profile(text: &str) -> Result<Profile, String> {
    Profile::named(text).ok_or_else(|| {
        format!("'{text}' is not a profile; the profiles are {}", Profile::NAMES.join(", "))
    })
}

/// Checks a list of emulated devices, and returns it.
pub(crate) fn devices(text: &str) -> Result<String, String> {
    refuse_option(text)?;
    Profile::list(text).map(|_| text.to_owned()).ok_or_else(|| {
        format!(
            "'{text}' is not a device; write {}, or a size (16GiB), or several with commas between \
             them",
            Profile::NAMES.join(", ")
        )
    })
}

/// Units of time, each with its length in nanoseconds.
const UNITS: [(&str, f64); 6] =
    [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 6e10), ("h", 3.6e12)];

/// Parses a time, which is a number and a unit. Refuses units smaller than `shortest`, and times
/// longer than `most`. The error shows `examples`.
pub(crate) fn time(
    text: &str,
    shortest: &str,
    most: Duration,
    examples: &str,
) -> Result<Duration, String> {
    refuse_option(text)?;
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number = number.parse::<f64>();
    let unit = if unit.trim() == "µs" { "us" } else { unit.trim() };
    let units = UNITS.iter().skip_while(|(unit, _)| *unit != shortest);
    let factor = units.clone().find(|(name, _)| *name == unit);
    let reason = match (unit, number, factor) {
        ("", ..) => "it has no unit",
        (_, Err(_), _) => "it does not start with a number",
        (_, _, None) => "it has an unknown unit",
        (_, Ok(number), Some((_, factor))) => match (number * factor).round() {
            0.0 => "it is zero",
            nanoseconds if nanoseconds > most.as_nanos() as f64 => "it is too long",
            nanoseconds => return Ok(Duration::from_nanos(nanoseconds as u64)),
        },
    };
    let units: Vec<&str> = units.map(|(name, _)| *name).collect();
    let units = units.join(", ");
    Err(format!("'{text}' is not a time: {reason}; write a number and one of {units} ({examples})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_needs_number_and_unit() {
        let time = |text| time(text, "us", Duration::from_secs(3600), "2ms, 5min");
        for (text, nanoseconds) in [
            ("2ms", 2_000_000),
            ("100us", 100_000),
            ("100µs", 100_000),
            ("1.5s", 1_500_000_000),
            ("1 min", 60_000_000_000),
        ] {
            assert_eq!(time(text), Ok(Duration::from_nanos(nanoseconds)), "{text}");
        }
        for (text, reason) in [
            ("2", "no unit"),
            ("ms", "number"),
            ("-1ms", "number"),
            ("1.2.3ms", "number"),
            ("2d", "unknown unit"),
            ("2ns", "unknown unit"),
            ("0ms", "zero"),
            ("2h", "too long"),
            ("--json", "missing"),
        ] {
            assert!(time(text).unwrap_err().contains(reason), "{text}: {:?}", time(text));
        }
    }
}
