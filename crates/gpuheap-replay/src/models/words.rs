//! Texts from the user: quoting in messages, and the nearest known word.

use super::SettingError;

impl SettingError {
    /// Returns the error for a name that is not in `known`.
    pub(super) fn unknown(what: &str, name: &str, known: &[&str]) -> Self {
        // A word is near if at most half of its letters differ.
        let letters = name.chars().count();
        let is_part = |known: &str| letters >= 3 && known.contains(name);
        let is_near = |known: &&&str| is_part(known) || distance(name, known) * 2 <= letters;
        let near = known.iter().filter(is_near);
        let nearest = near.min_by_key(|known| (!is_part(known), distance(name, known)));
        Self::new(
            format!("{what} {}", quoted(name)),
            match nearest {
                Some(nearest) => format!("the nearest known one is {nearest}"),
                None if known.is_empty() => "leave it out".to_owned(),
                None => format!("known are {}", known.join(", ")),
            },
        )
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
