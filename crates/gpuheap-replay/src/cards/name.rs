//! Compares names of devices as users type them.

/// Words of a device's name. Letters and digits are separate words, so that `rtx4060` and `RTX
/// 4060` are equal.
#[derive(Debug, Clone)]
pub(super) struct Name {
    /// All words except the memory.
    words: Vec<String>,
    /// Memory in GB, if the name contains a memory size.
    memory: Option<String>,
    /// All words joined, to compare with a name typed without blanks.
    joined: String,
}

/// Words that do not identify a device.
const IGNORED: [&str; 6] = ["nvidia", "geforce", "tesla", "quadro", "gpu", "card"];
/// Words that distinguish two devices: `RTX 4070 Ti` is not `RTX 4070`.
const DISTINGUISHING: [&str; 6] = ["ti", "super", "ada", "wsl", "mig", "blackwell"];

impl Name {
    /// Reads a name as a user types it.
    pub(super) fn parse(text: &str) -> Self {
        // Bounds the time of a comparison, because a user may type a megabyte.
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
        // The memory of a MIG slice is a part of its name: `1g.5gb`.
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

    /// Returns `true` if both names are equal.
    pub(super) fn equals(&self, known: &Self) -> bool {
        self.joined == known.joined
    }

    /// Returns `true` if both names have equal words, and this name contains no memory size.
    pub(super) fn equals_but_memory(&self, known: &Self) -> bool {
        self.memory.is_none() && self.words == known.words
    }

    /// Returns `true` if `known` contains all words of this name, and no further word that
    /// distinguishes devices.
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

    /// Returns all words, joined.
    pub(super) fn joined(&self) -> &str {
        &self.joined
    }
}
