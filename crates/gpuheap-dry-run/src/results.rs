//! Parses `--read`: results that the user sets for lines of the program.

use serde::Serialize;

/// Value that the user sets for one line of the program. The line reads this value in place of a
/// kernel's result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SetResult {
    /// Path of the file that contains the line, or the last part of that path.
    pub file: String,
    /// Line number in the file.
    pub line: u32,
    /// Python expression for the value that the line reads. The expression may use `shape` (the
    /// sizes of the tensor that is read) and `bound` (the largest number of elements that the
    /// operator can count).
    pub value: String,
}

impl SetResult {
    /// Parses `FILE:LINE=VALUE`.
    ///
    /// # Errors
    ///
    /// Returns a text for the user if a part is missing.
    pub fn parse(text: &str) -> Result<SetResult, String> {
        let wrong = || {
            format!(
                "{text}: write FILE:LINE=VALUE, such as model.py:31=100 or model.py:31=shape[0]//4"
            )
        };
        let (place, value) = text.split_once('=').ok_or_else(wrong)?;
        let (file, line) = place.rsplit_once(':').ok_or_else(wrong)?;
        let line = line.parse().map_err(|_| wrong())?;
        match file.is_empty() || value.trim().is_empty() {
            true => Err(wrong()),
            false => Ok(SetResult { file: file.to_owned(), line, value: value.trim().to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_result_is_parsed_in_parts() {
        let parsed = SetResult::parse("a/model.py:31=shape[0] == 2").unwrap();
        let expected = ("a/model.py", 31, "shape[0] == 2");
        assert_eq!((parsed.file.as_str(), parsed.line, parsed.value.as_str()), expected);
        for wrong in ["", "model.py=3", "model.py:x=3", ":3=4", "model.py:3", "model.py:3= "] {
            assert!(SetResult::parse(wrong).unwrap_err().contains("FILE:LINE=VALUE"), "{wrong}");
        }
    }
}
