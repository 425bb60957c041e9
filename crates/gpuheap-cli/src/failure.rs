//! Why a command could not do its work, in one form for all of them.

use std::process::ExitCode;

/// Failure of a command: lines for stderr, each of which says what, where, why and
/// what to do, and the exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    code: u8,
    lines: Vec<String>,
}

impl Failure {
    /// The command was used wrongly, or what it was given cannot be read: exit code 2.
    pub(crate) fn wrong_use(line: impl ToString) -> Failure {
        Failure { code: 2, lines: vec![one_line(&line.to_string())] }
    }

    /// The command could not look: no driver, no such device, nowhere to write. Exit code 3.
    pub(crate) fn could_not_look(line: impl ToString) -> Failure {
        Failure { code: 3, lines: vec![one_line(&line.to_string())] }
    }

    /// This failure and another one of the same kind.
    pub(crate) fn and(mut self, other: Failure) -> Failure {
        self.code = self.code.max(other.code);
        self.lines.extend(other.lines);
        self
    }

    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

/// An argument or a driver's text may hold line breaks and control characters.
fn one_line(text: &str) -> String {
    text.split(|c: char| c.is_control())
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_on_one_line() {
        assert_eq!(Failure::wrong_use("a\nb\u{1b}[31mc\r\n").lines(), ["a b [31mc"]);
    }

    #[test]
    fn keeps_every_line() {
        let both = Failure::wrong_use("one").and(Failure::wrong_use("two"));
        assert_eq!(both.lines(), ["one", "two"]);
    }
}
