//! Finds how large a variable, such as a batch size, may be until a program runs out of memory.

/// A variable of a search for the largest batch, and the range of values to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindBatch {
    /// Name of the environment variable. Its value also replaces `{NAME}` in program arguments.
    pub variable: String,
    /// Smallest value.
    pub least: u64,
    /// Largest value.
    pub most: u64,
    /// Distance between values. Each value is `least` plus a multiple of the distance.
    pub step: u64,
}

/// Maximum number of combinations of the values of all variables except the first. For each
/// combination, the dry run searches for the largest value of the first variable.
const MOST_COMBINATIONS: usize = 64;

impl FindBatch {
    /// Parses `BATCH=8..64`, or `LENGTH=128..8192:128` with a distance between values.
    ///
    /// # Errors
    ///
    /// Returns a text that names the wrong part of `text`.
    pub fn parse(text: &str) -> Result<FindBatch, String> {
        let wrong = |reason: &str| {
            Err(format!(
                "'{text}' is not a variable and a range: {reason}; write BATCH=8..64, or \
                 LENGTH=128..8192:128 for multiples of 128"
            ))
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
        let (most, step) = most.split_once(':').unwrap_or((most, "1"));
        let (Ok(least), Ok(most), Ok(step)) = (least.parse(), most.parse(), step.parse()) else {
            return wrong("the ends and the distance are whole numbers");
        };
        match (least <= most, step) {
            (false, _) => wrong("the first end is the smaller one"),
            (_, 0) => wrong("the distance of the values is at least 1"),
            _ => Ok(FindBatch { variable: variable.to_owned(), least, most, step }),
        }
    }

    /// Bisects for the largest value up to `most` for which `fits` returns `true`. Calls `fits`
    /// once for each value that it tries. Returns `None` if the smallest value does not fit.
    /// Assumes that all values below a fitting value fit.
    pub(crate) fn search<E>(
        &self,
        most: u64,
        mut fits: impl FnMut(u64) -> Result<bool, E>,
    ) -> Result<Option<u64>, E> {
        let value = |number: u64| self.least + number * self.step;
        let last = most.saturating_sub(self.least) / self.step;
        if fits(value(last))? {
            return Ok(Some(value(last)));
        }
        if last == 0 || !fits(self.least)? {
            return Ok(None);
        }
        let (mut fitting, mut failing) = (0, last);
        while failing - fitting > 1 {
            let middle = fitting + (failing - fitting) / 2;
            match fits(value(middle))? {
                true => fitting = middle,
                false => failing = middle,
            }
        }
        Ok(Some(value(fitting)))
    }

    /// Returns the smallest value, its repeated doublings, and the largest value.
    fn ladder(&self) -> Vec<u64> {
        let next = |value: &u64| match value.saturating_mul(2).max(1) {
            next if next < self.most => {
                Some(next.max(self.least) / self.step * self.step).filter(|next| next > value)
            }
            _ => None,
        };
        let mut values: Vec<u64> = std::iter::successors(Some(self.least), next).collect();
        values.extend((self.most > self.least).then_some(self.most));
        values
    }
}

/// Returns the combinations of the variables after the first one, smallest values first. Tries each
/// variable at its smallest value, at doublings of that value, and at its largest value.
///
/// # Errors
///
/// Returns a text if there are more than [`MOST_COMBINATIONS`].
pub(crate) fn combinations(others: &[FindBatch]) -> Result<Vec<Vec<u64>>, String> {
    let mut all = vec![Vec::new()];
    for range in others {
        let ladder = range.ladder();
        if all.len() * ladder.len() > MOST_COMBINATIONS {
            return Err(format!(
                "--find-batch: the variables after the first have more than {MOST_COMBINATIONS} \
                 combinations; give narrower ranges"
            ));
        }
        let longer = |values: &Vec<u64>| {
            let values = values.clone();
            ladder.iter().map(move |&value| [&values[..], &[value]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    Ok(all)
}

/// Returns an upper bound for the first variable if the other variables have the values `with`.
/// `found` has the earlier searches: the other variables' values, and the largest first value that
/// fitted. A search gives a bound if none of its other values was larger than in `with`. Returns
/// the smallest bound. Returns `Some(None)` if one of these searches found no value that fits, and
/// `None` if no search gives a bound.
pub(crate) fn bound(found: &[(Vec<u64>, Option<u64>)], with: &[u64]) -> Option<Option<u64>> {
    let is_below = |values: &[u64]| values.iter().zip(with).all(|(one, other)| one <= other);
    found.iter().filter(|(values, _)| is_below(values)).map(|(_, largest)| *largest).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_range_parses_or_is_refused() {
        let of = |variable: &str, least, most, step| {
            Ok(FindBatch { variable: variable.to_owned(), least, most, step })
        };
        assert_eq!(FindBatch::parse("BATCH=8..64"), of("BATCH", 8, 64, 1));
        assert_eq!(FindBatch::parse("b_1=3..3"), of("b_1", 3, 3, 1));
        assert_eq!(FindBatch::parse("L=128..8192:128"), of("L", 128, 8192, 128));
        for (text, reason) in [
            ("BATCH", "no ="),
            ("=1..2", "name"),
            ("1B=1..2", "name"),
            ("B=1-2", "no .."),
            ("B=1..x", "whole"),
            ("B=-1..2", "whole"),
            ("B=1..2:x", "whole"),
            ("B=2..1", "smaller"),
            ("B=1..2:0", "at least 1"),
        ] {
            let error = FindBatch::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn search_finds_the_largest_that_fits() {
        for (text, most) in [("B=8..64", 64), ("B=8..64", 40), ("B=8..64:8", 64), ("B=7..66:8", 66)]
        {
            let range = FindBatch::parse(text).unwrap();
            for largest in 0..80 {
                let mut tried = Vec::new();
                let found = range.search(most, |value| {
                    tried.push(value);
                    Ok::<_, ()>(value <= largest)
                });
                let values = (range.least..=most).step_by(range.step as usize);
                assert_eq!(found, Ok(values.filter(|&value| value <= largest).last()), "{largest}");
                assert!(tried.len() <= 8, "{tried:?}");
            }
        }
    }

    #[test]
    fn combinations_double_each_other_variable() {
        let range = |text| FindBatch::parse(text).unwrap();
        let lengths = range("L=128..1000:8");
        assert_eq!(combinations(&[]), Ok(vec![vec![]]));
        let one = combinations(std::slice::from_ref(&lengths)).unwrap();
        assert_eq!(one, [[128], [256], [512], [1000]]);
        let two = combinations(&[range("A=0..1"), lengths]).unwrap();
        assert_eq!(two.len(), 8);
        assert_eq!((&two[0], &two[7]), (&vec![0, 128], &vec![1, 1000]));
        let wide = [range("A=1..1000"), range("B=1..1000")];
        assert!(combinations(&wide).unwrap_err().contains("narrower"));
    }

    #[test]
    fn smaller_combination_bounds_the_search() {
        let found = [(vec![1, 128], Some(40)), (vec![1, 256], Some(20)), (vec![2, 128], None)];
        assert_eq!(bound(&found, &[1, 512]), Some(Some(20)));
        assert_eq!(bound(&found, &[2, 128]), Some(None));
        assert_eq!(bound(&found, &[0, 128]), None);
    }
}
