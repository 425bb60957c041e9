//! Texts of sizes, times and lines.

use std::fmt;

/// Formats bytes as whole MiB, like `nvidia-smi`.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// Bytes with a binary unit and two decimals: `9.69 GiB`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount(pub(crate) u64);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let text = match self.0 {
            0 => "0".to_owned(),
            1 => "1 byte".to_owned(),
            bytes if bytes < 1024 => format!("{bytes} bytes"),
            bytes => {
                let mut power = (bytes.ilog2() / 10) as usize;
                let mut hundredths = (bytes as f64 / 1024_f64.powi(power as i32) * 100.0).round();
                if hundredths >= 102_400.0 && power < UNITS.len() {
                    (power, hundredths) = (power + 1, 100.0);
                }
                let text = format!("{:.2}", hundredths / 100.0);
                format!("{} {}", text.strip_suffix(".00").unwrap_or(&text), UNITS[power - 1])
            }
        };
        f.pad(&text)
    }
}

/// Formats `1 GPU` or `2 GPUs`. A noun that ends in `s` gets `es`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    match (number, noun.ends_with('s')) {
        (1, _) => format!("1 {noun}"),
        (_, true) => format!("{number} {noun}es"),
        (_, false) => format!("{number} {noun}s"),
    }
}

/// Formats seconds as one number with a unit: `40 s`, `12 min`, `3 h`, `9 d`.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Cuts a text to `width` characters. Replaces control characters, and ends a longer text with `…`.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.chars().count() <= width {
        return clean;
    }
    let mut short: String = clean.chars().take(width.saturating_sub(1)).collect();
    short.truncate(short.trim_end().len());
    short.push('…');
    short
}

/// Adds words after `first`, for `width` columns. Further lines begin with `indent`.
pub(crate) fn hanging(text: &mut String, first: &str, indent: &str, words: &str, width: usize) {
    let mut line = first.to_owned();
    let mut is_start = true;
    for word in words.split_whitespace() {
        if !is_start && line.chars().count() + 1 + word.chars().count() > width {
            text.push_str(line.trim_end());
            text.push('\n');
            indent.clone_into(&mut line);
            is_start = true;
        }
        if !is_start {
            line.push(' ');
        }
        line.push_str(word);
        is_start = false;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_have_one_unit() {
        let texts: Vec<String> = [0, 1, 1023, 1 << 20, (1 << 30) - 1, 10 << 30, u64::MAX]
            .map(|bytes| Amount(bytes).to_string())
            .into();
        assert_eq!(texts, ["0", "1 byte", "1023 bytes", "1 MiB", "1 GiB", "10 GiB", "16 EiB"]);
        assert_eq!([119, 120, 7200, 172_800].map(age), ["119 s", "2 min", "2 h", "2 d"]);
        assert_eq!(mib(1542 << 20), "1542 MiB");
    }

    #[test]
    fn texts_are_cut_with_a_mark() {
        assert_eq!(cut("python3 train.py\n", 20), "python3 train.py ");
        assert_eq!(cut("python3 train.py", 10), "python3 t…");
    }

    #[test]
    fn lines_hang_below_their_first() {
        let mut text = String::new();
        hanging(&mut text, "- ", "  ", "one two three", 9);
        assert_eq!(text, "- one two\n  three\n");
    }
}
