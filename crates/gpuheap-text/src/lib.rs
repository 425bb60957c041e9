//! Formats sizes, numbers, durations and terminal lines for people to read.
//!
//! ```
//! use gpuheap_text::{Amount, count, hanging};
//!
//! let mut text = String::new();
//! let words = format!("{} in {}", Amount(10_403_971_072), count(2, "process"));
//! hanging(&mut text, "- ", "  ", &words, 14);
//! assert_eq!(text, "- 9.69 GiB in\n  2 processes\n");
//! ```

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Number of bytes, displayed as `8 bytes` or, from 1 KiB, as `9.69 GiB`. `{:#}` rounds up, so that
/// a limit typed as displayed is never below the exact size.
#[derive(Debug, Clone, Copy)]
pub struct Amount(pub u64);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let text = match self.0 {
            0 => "0".to_owned(),
            1 => "1 byte".to_owned(),
            bytes if bytes < 1024 => format!("{bytes} bytes"),
            bytes => {
                let mut power = bytes.ilog2() / 10;
                let (bytes, unit) = (u128::from(bytes) * 100, 1_u128 << (10 * power));
                let mut hundredths =
                    if f.alternate() { bytes.div_ceil(unit) } else { (bytes + unit / 2) / unit };
                if hundredths >= 102_400 && (power as usize) < UNITS.len() {
                    (power, hundredths) = (power + 1, 100);
                }
                let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
                format!(
                    "{} {}",
                    text.strip_suffix(".00").unwrap_or(&text),
                    UNITS[power as usize - 1]
                )
            }
        };
        f.pad(&text)
    }
}

/// Writes bytes as whole MiB, rounded up like in `nvidia-smi`: `1542 MiB`.
pub fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// Writes `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index != 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes `1 event` or `2 events`. A noun that ends in `s` gets `es`.
pub fn count(number: u64, noun: &str) -> String {
    let plural = match (number, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {noun}{plural}", grouped(number))
}

/// Writes seconds as one number with a unit: `40 s`, `12 min`, `3 h`, `9 d`.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Quotes a word for a shell, if it contains characters that a shell may interpret. A word with
/// control characters is quoted as `$'...'`, for bash and zsh, so that it stays on one line.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if !word.contains(char::is_control) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let escaped = |c: char| match c {
        '\'' | '\\' => format!("\\{c}"),
        c if c.is_control() => c.to_string().bytes().map(|byte| format!("\\x{byte:02x}")).collect(),
        c => c.to_string(),
    };
    format!("$'{}'", word.chars().map(escaped).collect::<String>())
}

/// Replaces control characters by blanks. Otherwise a name in a file could control the terminal
/// that shows it.
pub fn printable(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        true => text.replace(char::is_control, " ").into(),
        false => text.into(),
    }
}

/// Cuts a text to `width` characters. Replaces control characters, and ends a longer text with `…`.
pub fn cut(text: &str, width: usize) -> String {
    let clean = printable(text);
    if clean.chars().count() <= width {
        return clean.into_owned();
    }
    let mut short: String = clean.chars().take(width.saturating_sub(1)).collect();
    short.truncate(short.trim_end().len());
    short.push('…');
    short
}

/// Cuts a name to `width` characters. Replaces control characters. If the name is a line of a
/// program, such as `train.py:115 in step`, keeps the line's number and the end of the function's
/// name. If not, keeps both ends of the name.
pub fn cut_name(text: &str, width: usize) -> String {
    /// Minimum number of characters that are kept from a function's name.
    const LEAST: usize = 8;
    let letters: Vec<char> = printable(text).chars().collect();
    if letters.len() <= width {
        return letters.into_iter().collect();
    }
    let room = width.saturating_sub(1);
    let start = text.split_once(" in ").map(|(line, _)| line.chars().count() + 4);
    let start = start.filter(|start| start + LEAST <= room).unwrap_or(room / 2);
    let end = &letters[letters.len() - (room - start)..];
    letters[..start].iter().chain(&['…']).chain(end).collect()
}

/// Formats a line as `format!` does, removes trailing blanks, and appends the line to `$text`.
#[macro_export]
macro_rules! add_line {
    ($text:expr, $($line:tt)*) => { $crate::line($text, format_args!($($line)*)) };
}

/// Adds a line, without its trailing blanks.
pub fn line(text: &mut String, line: impl fmt::Display) {
    // A write to a string never fails.
    let _ = writeln!(text, "{}", line.to_string().trim_end());
}

/// Appends `first` and `words` to `text`, in lines of `width` columns. Lines after the first begin
/// with `indent`. A word that is wider than a line is broken after its commas.
pub fn hanging(text: &mut String, first: &str, indent: &str, words: &str, width: usize) {
    let room = width.saturating_sub(indent.chars().count());
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    let pieces = words.split_inclusive(' ').flat_map(|word| {
        let is_wide = word.trim_end().chars().count() > room;
        word.split_inclusive(move |c| is_wide && c == ',')
    });
    wrap(text, first, indent, pieces, width);
}

/// Appends `first` and `pieces` to `text`, in lines of `width` columns. Lines after the first begin
/// with `indent`. The first piece stays after `first`, and no piece is broken.
pub fn wrap<'t>(
    text: &mut String,
    first: &str,
    indent: &str,
    pieces: impl IntoIterator<Item = &'t str>,
    width: usize,
) {
    let columns = |text: &str| text.chars().count();
    text.push_str(first);
    let mut column = columns(first);
    for (number, piece) in pieces.into_iter().enumerate() {
        if number > 0 && column + columns(piece.trim_end()) > width {
            text.truncate(text.trim_end().len());
            text.push('\n');
            text.push_str(indent);
            column = columns(indent);
        }
        text.push_str(piece);
        column += columns(piece);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_two_decimals() {
        for (bytes, nearest, enough) in [
            (0, "0", "0"),
            (1, "1 byte", "1 byte"),
            (1023, "1023 bytes", "1023 bytes"),
            (1 << 20, "1 MiB", "1 MiB"),
            ((1 << 30) - 1, "1 GiB", "1 GiB"),
            (10_403_971_072, "9.69 GiB", "9.69 GiB"),
            (1_395_864_372, "1.30 GiB", "1.31 GiB"),
            (u64::MAX, "16 EiB", "16 EiB"),
        ] {
            let shown = (format!("{}", Amount(bytes)), format!("{:#}", Amount(bytes)));
            assert_eq!(shown, (nearest.to_owned(), enough.to_owned()));
        }
        assert_eq!(mib((1541 << 20) + 1), "1542 MiB");
    }

    #[test]
    fn numbers_have_groups_and_plurals() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(count(1, "process"), "1 process");
        assert_eq!(count(1000, "process"), "1,000 processes");
        assert_eq!(count(0, "GPU"), "0 GPUs");
        assert_eq!([119, 120, 7200, 172_800].map(age), ["119 s", "2 min", "2 h", "2 d"]);
    }

    #[test]
    fn long_text_ends_with_a_mark() {
        assert_eq!(cut("python3 train.py\n", 20), "python3 train.py ");
        assert_eq!(cut("python3 train.py", 10), "python3 t…");
    }

    #[test]
    fn names_keep_line_and_end() {
        for (name, shown) in [
            ("a.cu:1 in pool::take", "a.cu:1 in pool::take"),
            ("decode.cu:118 in media::Decoder::take", "decode.cu:118 in …der::take"),
            ("long_name_of_a_source_file.cu:118 in take", "long_name_of_a_….cu:118 in take"),
            ("thread 4711 (decoder-one), ended", "thread 4711 (…r-one), ended"),
        ] {
            assert_eq!(cut_name(name, shown.chars().count()), shown);
        }
    }

    #[test]
    fn words_are_quoted_for_shell() {
        for (word, expected) in [
            ("python", "python"),
            ("--x=a.py:3,1%", "--x=a.py:3,1%"),
            ("expandable_segments:True", "expandable_segments:True"),
            ("a b", "'a b'"),
            ("", "''"),
            ("it's", r"'it'\''s'"),
            ("[256:1,>:8]", "'[256:1,>:8]'"),
            ("{BATCH}", "'{BATCH}'"),
            ("it's\ntwo\\é", r"$'it\'s\x0atwo\\é'"),
        ] {
            assert_eq!(shell_word(word), expected);
        }
    }

    #[test]
    fn paragraph_stays_within_width() {
        let hung = |first: &str, words: &str, width: usize| {
            let mut text = String::new();
            hanging(&mut text, first, "  ", words, width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            text
        };
        assert_eq!(hung("- ", "one two\n three", 9), "- one two\n  three\n");
        let text = hung("  1. ", &"word ".repeat(100), 80);
        assert_eq!(text.split_whitespace().count(), 101);
        let name = "setting:12,".repeat(12);
        let text = hung("", &format!("With {name} it gets through."), 80);
        assert!(text.replace("\n  ", "").contains(&format!("With {name}")), "{text}");
    }
}
