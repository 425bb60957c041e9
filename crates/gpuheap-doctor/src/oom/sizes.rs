//! Sizes in texts.

/// Returns the size that follows the text `before`: `20.00 MiB`, `8.000000 GiB`, `805,306,368
/// bytes`, `4096`. `None` if no size follows, or if it is larger than any device: drivers print 16
/// EiB for "unknown".
pub(super) fn after(text: &str, before: &str) -> Option<u64> {
    let (_, rest) = text.split_once(before)?;
    leading(rest)
}

/// Returns the size at the start of a text.
pub(super) fn leading(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let end =
        text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(text.len());
    let number: f64 = text[..end].trim_end_matches(['.', ',']).replace(',', "").parse().ok()?;
    let unit = text[end..].trim_start();
    let unit: String = unit.chars().take_while(char::is_ascii_alphabetic).collect();
    let factor = match unit.as_str() {
        "KiB" | "KB" | "kB" => 1024.0,
        "MiB" | "MB" => 1024.0 * 1024.0,
        "GiB" | "GB" => 1024.0 * 1024.0 * 1024.0,
        "TiB" | "TB" => 1024.0_f64.powi(4),
        _ => 1.0,
    };
    let bytes = number * factor;
    (bytes < 1e15).then_some(bytes.round() as u64)
}

/// Returns the size in front of `behind`: `14.31 GiB already allocated`.
pub(super) fn before(text: &str, behind: &str) -> Option<u64> {
    let (head, _) = text.split_once(behind)?;
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
    fn sizes_are_read_as_programs_write_them() {
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
}
