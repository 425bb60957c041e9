//! Formats text for people: names, paragraphs, and commands and code to type.

pub(crate) use gpuheap_text::{Amount, add_line, count, grouped, shell_word, wrap};

/// Width of a terminal, in columns.
pub const WIDTH: usize = 80;

/// Adds words, in lines of the terminal's width. Wider words have separate lines.
pub fn paragraph(text: &mut String, words: &str) {
    hanging(text, "", "", words);
}

/// Adds words after `first`, in lines of the terminal's width. Further lines begin with `indent`.
pub fn hanging(text: &mut String, first: &str, indent: &str, words: &str) {
    gpuheap_text::hanging(text, first, indent, words, WIDTH);
}

/// Adds `first`, and then code for the user to type. A long line is broken after a blank or an
/// opening bracket, where Python continues in the next line.
pub(crate) fn typed(text: &mut String, first: &str, indent: &str, code: &str) {
    wrap(text, first, indent, code.split_inclusive([' ', '(']), WIDTH);
}

/// Adds a shell variable after `first`, in several lines if it is wider than the terminal. Words
/// stay whole: in bash and zsh, blanks at the start of the next line would end the value.
pub(crate) fn exported(text: &mut String, first: &str, indent: &str, setting: &str) {
    let Some((name, value)) = setting.split_once('=') else {
        return typed(text, first, indent, setting);
    };
    let value = value.trim_matches('\'');
    let first_line = |value: &str| format!("export {name}={}", shell_word(value));
    let room = WIDTH - first.chars().count().max(indent.chars().count());
    if first_line(value).chars().count() <= room {
        return add_line!(text, "{first}{}", first_line(value));
    }
    let mut parts = settings(value).into_iter();
    add_line!(text, "{first}{}", first_line(parts.next().unwrap_or_default()));
    for part in parts {
        add_line!(text, "{indent}{name}+={}", shell_word(&format!(",{part}")));
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

/// Quotes the first 40 characters of a user's text, with control characters escaped.
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
    // Compares at most 64 letters, because a name may be a megabyte long.
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
    fn typed_lines_break_where_python_allows() {
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
    fn long_variables_span_shell_lines() {
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
            exported(&mut text, "  1. ", "     ", &format!("NAME={}", shell_word(value)));
            assert_eq!(text.lines().collect::<Vec<_>>(), lines);
        }
    }
}
