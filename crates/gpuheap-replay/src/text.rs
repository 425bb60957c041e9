//! Texts for people: sizes, numbers, names, lines of a terminal, and lines to type.

use std::fmt::{self, Write};

/// Width of a terminal, in columns.
pub const WIDTH: usize = 80;

/// Bytes with a binary unit and two decimals: `9.69 GiB`; below 1 KiB, `8 bytes`. `{:#}` rounds up,
/// so that a size that is enough is still enough when it is typed again.
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
                let mut power = (bytes.ilog2() / 10) as usize;
                let mut hundredths = bytes as f64 / 1024_f64.powi(power as i32) * 100.0;
                hundredths = if f.alternate() { hundredths.ceil() } else { hundredths.round() };
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

/// Writes `1 event` or `2 events`.
pub fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

/// Adds a line, without its trailing blanks.
pub fn line(text: &mut String, line: fmt::Arguments<'_>) {
    // A write to a string never fails.
    let _ = writeln!(text, "{}", line.to_string().trim_end());
}

/// Adds words, in lines of the terminal's width. A longer word has a line of its own.
pub fn paragraph(text: &mut String, words: &str) {
    hanging(text, "", "", words);
}

/// Adds words after `first`. Further lines begin with `indent`. A word that is wider than a line is
/// broken after its commas.
pub fn hanging(text: &mut String, first: &str, indent: &str, words: &str) {
    let mut column = first.chars().count();
    text.push_str(first);
    let room = WIDTH - indent.chars().count();
    let mut is_start = true;
    for word in words.split(' ') {
        let is_wide = word.chars().count() > room;
        let pieces: Vec<&str> = match is_wide {
            true => word.split_inclusive(',').collect(),
            false => vec![word],
        };
        for (number, piece) in pieces.into_iter().enumerate() {
            let width = piece.chars().count();
            let blank = usize::from(!is_start && number == 0);
            if !is_start && column + blank + width > WIDTH {
                text.truncate(text.trim_end().len());
                text.push('\n');
                text.push_str(indent);
                column = indent.chars().count();
            } else if blank == 1 {
                text.push(' ');
                column += 1;
            }
            text.push_str(piece);
            column += width;
            is_start = false;
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
}

/// Adds code to type after `first`. A long line is broken after a blank or an opening bracket,
/// where Python continues in the next line.
pub(crate) fn typed(text: &mut String, first: &str, indent: &str, code: &str) {
    text.push_str(first);
    let mut column = first.chars().count();
    let mut is_start = true;
    for piece in code.split_inclusive([' ', '(']) {
        let width = piece.trim_end().chars().count();
        if !is_start && column + width > WIDTH {
            text.truncate(text.trim_end().len());
            text.push('\n');
            text.push_str(indent);
            column = indent.chars().count();
        }
        text.push_str(piece);
        column += piece.chars().count();
        is_start = false;
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
}

/// Adds a shell variable after `first`, in several lines if the terminal is narrower. No word is
/// broken for bash and zsh, because blanks at the start of a line would end it.
pub(crate) fn exported(text: &mut String, first: &str, indent: &str, setting: &str) {
    let Some((name, value)) = setting.split_once('=') else {
        return typed(text, first, indent, setting);
    };
    let value = value.trim_matches('\'');
    let first_line = |value: &str| format!("export {name}={}", shell_quoted(value));
    let room = WIDTH - first.chars().count().max(indent.chars().count());
    if first_line(value).chars().count() <= room {
        return line(text, format_args!("{first}{}", first_line(value)));
    }
    let mut parts = settings(value).into_iter();
    line(text, format_args!("{first}{}", first_line(parts.next().unwrap_or_default())));
    for part in parts {
        line(text, format_args!("{indent}{name}+={}", shell_quoted(&format!(",{part}"))));
    }
}

/// Splits a text into settings, at commas outside of brackets.
fn settings(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let is_separator = |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(is_separator).collect()
}

/// Quotes a value for a shell.
pub(crate) fn shell_quoted(value: &str) -> String {
    match value.contains(['>', '[']) {
        true => format!("'{value}'"),
        false => value.to_owned(),
    }
}

/// Quotes a text from the user for a message: 40 characters at most, control characters escaped.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 40;
    let more = if text.chars().nth(SHOWN).is_some() { "…" } else { "" };
    let shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    format!("\"{shown}{more}\"")
}

/// Returns the edit distance of two words.
pub(crate) fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    // Bounds the time: a name may have a megabyte.
    for (index, letter) in one.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, &wanted) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != wanted);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
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
        ] {
            let shown = (format!("{}", Amount(bytes)), format!("{:#}", Amount(bytes)));
            assert_eq!(shown, (nearest.to_owned(), enough.to_owned()));
        }
    }

    #[test]
    fn digits_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn lines_to_type_break_where_python_goes_on() {
        let shown = |code: &str| {
            let mut text = String::new();
            typed(&mut text, "  1. ", "     ", code);
            assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
            text
        };
        let call = format!("set(rmm.{}({}(), 8, 16))", "A".repeat(50), "B".repeat(30));
        let text = shown(&call);
        assert!(text.contains("(\n     B"), "{text}");
        assert_eq!(text.split_whitespace().skip(1).collect::<String>(), call.replace(' ', ""));
    }

    #[test]
    fn variables_of_any_length_are_lines_of_the_shell() {
        let list = "a:[256:1,>:8]";
        for (value, lines) in [
            ("x:1", &["  1. export NAME=x:1"][..]),
            (list, &["  1. export NAME='a:[256:1,>:8]'"]),
            (
                &format!("{},{list},c:2", "b".repeat(60)),
                &[
                    &format!("  1. export NAME={}", "b".repeat(60)),
                    "     NAME+=',a:[256:1,>:8]'",
                    "     NAME+=,c:2",
                ],
            ),
        ] {
            let mut text = String::new();
            exported(&mut text, "  1. ", "     ", &format!("NAME={}", shell_quoted(value)));
            assert_eq!(text.lines().collect::<Vec<_>>(), lines);
        }
    }

    #[test]
    fn paragraphs_keep_to_the_width() {
        let mut text = String::new();
        hanging(&mut text, "  1. ", "     ", &"word ".repeat(100));
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!(text.split_whitespace().count(), 101);
        let name = "setting:12,".repeat(12);
        let mut text = String::new();
        paragraph(&mut text, &format!("With {name} it gets through."));
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.replace('\n', "").contains(&format!("With {name}")), "{text}");
    }
}
