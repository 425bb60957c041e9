//! Cuts the texts of answers to clients to a maximum length, and removes control characters.
//!
//! A program cuts its texts, so that its answer is short. The reader cuts them again, because a
//! program can send any text.

use gpuheap_text::printable;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum number of texts in a list, such as names of holders, each of about 20 to 80 characters.
const MOST_TEXTS: usize = 8;

/// Serializes and deserializes a field, and cuts its texts to `MOST` characters.
pub(crate) struct Texts<const MOST: usize>;

impl<const MOST: usize> Texts<MOST> {
    pub(crate) fn serialize<S: Serializer>(
        value: &(impl Bounded + Serialize),
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.bounded(MOST).serialize(to)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: Bounded + Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(T::deserialize(from)?.bounded(MOST))
    }
}

/// A text, or several.
pub(crate) trait Bounded: Sized {
    /// Returns the value with its texts cut to `most` characters and without control characters.
    fn bounded(&self, most: usize) -> Self;
}

impl Bounded for String {
    /// Keeps the end of the text, because a path ends with the file's name.
    fn bounded(&self, most: usize) -> String {
        let over = self.chars().count().saturating_sub(most);
        let start = self.char_indices().nth(over).map_or(self.len(), |(at, _)| at);
        printable(&self[start..]).into_owned()
    }
}

impl Bounded for Option<String> {
    fn bounded(&self, most: usize) -> Option<String> {
        self.as_ref().map(|text| text.bounded(most))
    }
}

impl Bounded for Vec<String> {
    fn bounded(&self, most: usize) -> Vec<String> {
        self.iter().take(MOST_TEXTS).map(|text| text.bounded(most)).collect()
    }
}
