//! Texts in JSON.

/// Returns a text for the inside of a JSON string.
pub(crate) fn escaped(text: &str) -> String {
    let special = |c: char| c.is_control() || c == '"' || c == '\\';
    text.chars().map(|c| if special(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_within_their_quotes() {
        assert_eq!(escaped("a \"b\" \\ c\n"), "a  b    c ");
    }
}
