//! Names of devices, compared as people type them.

/// Words of a device's name. Letters and digits are words of their own, so that `rtx4060` and
/// `RTX 4060` are equal.
#[derive(Debug, Clone)]
pub(super) struct Name {
    /// All words but the memory.
    words: Vec<String>,
    /// Memory in GB, if the name gives it.
    memory: Option<String>,
    /// All words in one, for a name that was typed without blanks.
    joined: String,
}

/// Words that say nothing of the device.
const IGNORED: [&str; 6] = ["nvidia", "geforce", "tesla", "quadro", "gpu", "card"];
/// Words that make another device of the one without them.
const DISTINGUISHING: [&str; 6] = ["ti", "super", "ada", "wsl", "mig", "blackwell"];

impl Name {
    pub(super) fn of(text: &str) -> Self {
        // A name of a megabyte is not worth the time.
        const LONGEST: usize = 100;
        let text: String = text.chars().take(LONGEST).flat_map(char::to_lowercase).collect();
        let mut words: Vec<String> = Vec::new();
        let mut last = None;
        for letter in text.chars() {
            let kind = (letter.is_alphabetic(), letter.is_numeric());
            match words.last_mut() {
                Some(word) if last == Some(kind) => word.push(letter),
                _ if letter.is_alphanumeric() => words.push(letter.to_string()),
                _ => {}
            }
            last = letter.is_alphanumeric().then_some(kind);
        }
        words.retain(|word| !IGNORED.contains(&word.as_str()));
        let mut joined = words.concat();
        while let Some(rest) = IGNORED.iter().find_map(|word| joined.strip_prefix(word)) {
            joined = rest.to_owned();
        }
        let is_unit = |word: &String| word == "gb" || word == "gib";
        let is_slice = words.windows(2).any(|pair| pair[1] == "g" && pair[0].len() == 1);
        let mut memory = None;
        // A slice's own memory is a part of its name: `1g.5gb`.
        if let Some(at) = words.iter().position(is_unit)
            && at > 0
            && !is_slice
        {
            words.remove(at);
            memory = Some(words.remove(at - 1));
        } else if words.last().is_some_and(|word| word == "g") && words.len() > 1 && !is_slice {
            words.pop();
            memory = words.pop();
        }
        if is_slice && !words.iter().any(|word| word == "mig") {
            words.push("mig".to_owned());
        }
        Self { words, memory, joined }
    }

    /// Returns whether both are one name.
    pub(super) fn equals(&self, known: &Self) -> bool {
        self.joined == known.joined
    }

    /// Returns whether both are one name, of which this one does not give the memory.
    pub(super) fn equals_but_memory(&self, known: &Self) -> bool {
        self.memory.is_none() && self.words == known.words
    }

    /// Returns whether the known name has all words of this one, and no word more that would make
    /// it another device.
    pub(super) fn is_part(&self, known: &Self) -> bool {
        let mut left = known.words.clone();
        let has_all = !self.words.is_empty()
            && self.words.iter().all(|word| {
                let at = left.iter().position(|own| own == word);
                at.map(|at| left.swap_remove(at)).is_some()
            });
        has_all
            && !left.iter().any(|word| DISTINGUISHING.contains(&word.as_str()))
            && (self.memory.is_none() || self.memory == known.memory)
    }

    /// Returns the name without blanks.
    pub(super) fn joined(&self) -> &str {
        &self.joined
    }
}
