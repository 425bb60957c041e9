//! Removes names of people, folders and hosts from a machine.

use std::collections::BTreeMap;

use super::Machine;

/// Words to replace in a text before other people read the text. Each word has its replacement.
#[derive(Debug, Clone, Default)]
pub(crate) struct Redaction {
    words: Vec<(String, String)>,
}

impl Machine {
    /// Returns a copy of the machine in which users are numbered and arguments are hidden. Also
    /// returns replacements for the names in texts about the machine.
    pub(crate) fn redacted(&self) -> (Machine, Redaction) {
        let mut machine = self.clone();
        let mut words = Vec::new();
        let text = |path: &str| self.source.read_text(path).trim().to_owned();

        for file in ["/proc/sys/kernel/hostname", "/etc/hostname"] {
            let name = text(file);
            // A network name begins with the machine's own name.
            let own = name.split('.').next().unwrap_or_default().to_owned();
            words.extend([(name, "HOST".to_owned()), (own, "HOST".to_owned())]);
        }
        let mut users: BTreeMap<String, String> = BTreeMap::new();
        for process in &mut machine.processes {
            let count = users.len() + 1;
            let number = users.entry(process.user.clone()).or_insert_with(|| {
                let is_own = process.uid.is_some() && process.uid == self.host.uid;
                match process.user.as_str() {
                    "root" | "?" => process.user.clone(),
                    _ if is_own => "self".to_owned(),
                    _ => format!("user{count}"),
                }
            });
            process.user.clone_from(number);
            process.hides_arguments = true;
        }
        // Removes lines of code, scopes, arguments and error texts: they may have private names.
        for program in &mut machine.programs {
            program.leaks.sites.clear();
            (program.scopes, program.libraries) = (Vec::new(), Vec::new());
            program.failure = None;
            if let Some(status) = &mut program.status {
                let name = status.program.split_whitespace().next().unwrap_or_default();
                status.program = name.to_owned();
            }
        }
        for line in text("/etc/passwd").lines() {
            let mut fields = line.split(':');
            let (name, uid, home) = (fields.next(), fields.nth(1), fields.nth(2));
            let is_person =
                uid.and_then(|uid| uid.parse::<u32>().ok()).is_some_and(|uid| uid >= 1000);
            if let Some(home) =
                home.filter(|home| home.len() > 1 && (is_person || *home == "/root"))
            {
                words.push((home.to_owned(), "~".to_owned()));
            }
            if let Some(name) = name.filter(|_| is_person) {
                words.push((name.to_owned(), "USER".to_owned()));
            }
        }
        let home = self.source.variable("HOME").unwrap_or_default();
        words.push((home.trim_end_matches('/').to_owned(), "~".to_owned()));
        words.push((self.source.variable("USER").unwrap_or_default(), "USER".to_owned()));
        words.extend(users.into_iter().filter(|(name, number)| name != number));
        words.retain(|(word, _)| word.len() > 1 && word != "root" && word != "localhost");
        // Longer words are replaced first, because a home folder contains the user's name.
        words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        (machine, Redaction { words })
    }
}

impl Redaction {
    /// Replaces private names that are whole words in the text, and all users' home folders.
    pub(crate) fn apply(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (word, replacement) in &self.words {
            text = replaced(&text, word, replacement);
        }
        for folder in ["/home/", "/Users/", "\\Users\\"] {
            text = without_names(&text, folder);
        }
        text
    }
}

fn replaced(text: &str, word: &str, replacement: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        let is_alone = !before.chars().next_back().is_some_and(is_part)
            && !after.chars().next().is_some_and(is_part);
        result.push_str(before);
        result.push_str(if is_alone { replacement } else { word });
        rest = after;
    }
    result + rest
}

/// Replaces each home folder in a text with `~`. A home folder is `folder`, such as `/home/`, and a
/// user's name after it. Ignores upper and lower case. A Windows name may contain blanks. If the
/// path continues after the name, the name ends at the next separator.
fn without_names(text: &str, folder: &str) -> String {
    let (lower, wanted) = (text.to_ascii_lowercase(), folder.to_ascii_lowercase());
    let mut result = String::new();
    let mut done = 0;
    for (at, _) in lower.match_indices(&wanted) {
        let name = at + folder.len();
        if at < done {
            continue;
        }
        result.push_str(&text[done..at]);
        result.push('~');
        let part = &text[name..];
        let ends = ['/', '\\', ',', ')', ':', '`', '\n'];
        let end = part.find(ends).unwrap_or(part.len());
        let has_separator = part[end..].starts_with(['/', '\\']);
        let is_windows = wanted.contains("users");
        let blank = part.find(' ').unwrap_or(part.len());
        done = name + if is_windows && has_separator { end } else { end.min(blank) };
    }
    result + &text[done..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_are_replaced() {
        let words = vec![("ann".to_owned(), "USER".to_owned())];
        let redaction = Redaction { words };
        assert_eq!(redaction.apply("ann planned (ann, 2 h)"), "USER planned (USER, 2 h)");
        assert_eq!(redaction.apply("open /home/ben/x and /mnt/c/Users/cy"), "open ~/x and /mnt/c~");
        assert_eq!(
            redaction.apply(r"in D:\users\Ben Smith\x, /mnt/c/Users/B S/y"),
            r"in D:~\x, /mnt/c~/y"
        );
    }
}
