//! Search for the largest value of a variable with which a program fits.

/// A variable, and the range of values to search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindBatch {
    /// Name of the environment variable. `{NAME}` in arguments is replaced too.
    pub variable: String,
    /// Smallest value.
    pub least: u64,
    /// Largest value.
    pub most: u64,
}

impl FindBatch {
    /// Parses `BATCH=8..64`.
    ///
    /// # Errors
    ///
    /// Returns a text that names the wrong part of `text`.
    pub fn parse(text: &str) -> Result<FindBatch, String> {
        let wrong = |reason: &str| {
            Err(format!("'{text}' is not a variable and a range: {reason}; write BATCH=8..64"))
        };
        let Some((variable, range)) = text.split_once('=') else { return wrong("it has no =") };
        let is_name = |text: &str| {
            !text.is_empty()
                && !text.starts_with(|c: char| c.is_ascii_digit())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if !is_name(variable) {
            return wrong("a name has letters, digits and _");
        }
        let Some((least, most)) = range.split_once("..") else { return wrong("it has no ..") };
        let (Ok(least), Ok(most)) = (least.parse(), most.parse()) else {
            return wrong("the ends are whole numbers");
        };
        match least <= most {
            true => Ok(FindBatch { variable: variable.to_owned(), least, most }),
            false => wrong("the first end is the smaller one"),
        }
    }

    /// Bisects for the largest value for which `fits` returns `true`. Calls `fits` once for each
    /// value that it tries. Returns `None` if the smallest value does not fit. Assumes that all
    /// values below a fitting one fit.
    pub(crate) fn search<E>(
        &self,
        mut fits: impl FnMut(u64) -> Result<bool, E>,
    ) -> Result<Option<u64>, E> {
        if fits(self.most)? {
            return Ok(Some(self.most));
        }
        if self.least == self.most || !fits(self.least)? {
            return Ok(None);
        }
        let (mut fitting, mut failing) = (self.least, self.most);
        while failing - fitting > 1 {
            let middle = fitting + (failing - fitting) / 2;
            match fits(middle)? {
                true => fitting = middle,
                false => failing = middle,
            }
        }
        Ok(Some(fitting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_range_parses_or_is_refused() {
        let of = |variable: &str, least, most| {
            Ok(FindBatch { variable: variable.to_owned(), least, most })
        };
        assert_eq!(FindBatch::parse("BATCH=8..64"), of("BATCH", 8, 64));
        assert_eq!(FindBatch::parse("b_1=3..3"), of("b_1", 3, 3));
        for (text, reason) in [
            ("BATCH", "no ="),
            ("=1..2", "name"),
            ("1B=1..2", "name"),
            ("B=1-2", "no .."),
            ("B=1..x", "whole"),
            ("B=-1..2", "whole"),
            ("B=2..1", "smaller"),
        ] {
            let error = FindBatch::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn search_finds_the_largest_that_fits() {
        let range = FindBatch { variable: "B".to_owned(), least: 8, most: 64 };
        for largest in 0..80 {
            let mut tried = Vec::new();
            let found = range.search(|value| {
                tried.push(value);
                Ok::<_, ()>(value <= largest)
            });
            let expected = (largest >= 8).then_some(largest.min(64));
            assert_eq!(found, Ok(expected), "{largest}");
            assert!(tried.len() <= 8, "{tried:?}");
        }
    }
}
