//! Parses sizes in texts.

/// Returns the size that follows the text `before`, in forms such as `20.00 MiB`, `8.000000 GiB`,
/// `201. GiB`, `805,306,368 bytes` and `4096`. `None` if no size follows, or if the size is 16 EiB
/// or more, because drivers print such a size for "unknown".
pub(super) fn after(text: &str, before: &str) -> Option<u64> {
    let (_, rest) = text.split_once(before)?;
    leading(rest)
}

/// Returns the size at the start of a text. Units with an `i` are powers of 1024, other units are
/// powers of 1000.
pub(super) fn leading(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let end =
        text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(text.len());
    let number = text[..end].trim_end_matches(['.', ',']).replace(',', "");
    let unit = text[end..].trim_start();
    let unit: String = unit.chars().take_while(char::is_ascii_alphabetic).collect();
    let factor = factor(&unit);
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor.unwrap_or(1));
    }
    // A fraction needs a unit. A size without a unit is a whole number of bytes, as parsed above.
    let bytes = number.parse::<f64>().ok()? * factor? as f64;
    (bytes < UNKNOWN).then_some(bytes.round() as u64)
}

/// Smallest size that stands for "unknown".
const UNKNOWN: f64 = 18_446_744_073_709_551_616.0;

/// Returns the bytes of a unit.
fn factor(unit: &str) -> Option<u64> {
    const LETTERS: &str = "KMGTPE";
    let (letter, base) = match unit.strip_suffix("iB") {
        Some(letter) => (letter, 1024_u64),
        None => (unit.strip_suffix('B')?, 1000),
    };
    let letter = if letter == "k" { "K" } else { letter };
    let power = LETTERS.find(letter).filter(|_| letter.len() == 1)?;
    Some(base.pow(power as u32 + 1))
}

/// Returns the size that stands before the text `after`. For ` already` in `14.31 GiB already
/// allocated`, this is 14.31 GiB.
pub(super) fn before(text: &str, after: &str) -> Option<u64> {
    let (head, _) = text.split_once(after)?;
    let start = head
        .trim_end()
        .rfind(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != ',' && c != ' ');
    let words =
        &head[start.map_or(0, |at| at + head[at..].chars().next().map_or(1, char::len_utf8))..];
    let mut words: Vec<&str> = words.split_whitespace().rev().take(2).collect();
    words.reverse();
    leading(&words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_program_texts() {
        assert_eq!(after("Tried to allocate 20.00 MiB. GPU", "allocate "), Some(20 << 20));
        assert_eq!(after("allocating 805,306,368 bytes (", "allocating "), Some(805_306_368));
        assert_eq!(after("in use: 17179869184.00 GiB", "in use: "), None);
        assert_eq!(
            before("15.78 GiB total capacity; 14.50 GiB already allocated", " already"),
            Some(15_569_256_448)
        );
        assert_eq!(before("é 2 GiB free", " free"), Some(2 << 30));
        assert_eq!(leading("nothing"), None);
    }

    #[test]
    fn units_are_binary_or_decimal() {
        for (text, bytes) in [
            ("1.00 PiB", 1 << 50),
            ("8. EiB for an array", 8 << 60),
            ("1.5 TiB", 3 << 39),
            ("201. GiB", 201 << 30),
            ("512KiB", 512 << 10),
            ("4.29 GB", 4_290_000_000),
            ("7 kB", 7000),
            ("7 KB", 7000),
            ("2.5 MB", 2_500_000),
            ("3 TB", 3_000_000_000_000),
            ("2 PB", 2_000_000_000_000_000),
            ("1 EB", 1_000_000_000_000_000_000),
            ("4096 B", 4096),
            ("18014398509481985", 18_014_398_509_481_985),
            ("21474836480 at:", 21_474_836_480),
        ] {
            assert_eq!(leading(text), Some(bytes), "{text}");
        }
        for text in ["16 EiB", "1.5", "1.5 of", "20 EB", "GiB", "17179869184.00 GiB"] {
            assert_eq!(leading(text), None, "{text}");
        }
    }
}
