//! Results and failures of commands, with their exit codes.

/// Result of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No findings: exit code 0.
    Fine,
    /// The command found what it looks for. Its exit code is 1.
    Findings,
    /// The command found nothing, but some facts are unknown. Its output names them, and its exit
    /// code is 4. A [`Failure`] has code 2 or 3.
    AsFarAsKnown,
    /// Exit code of the program that the command ran. The command ends with the same code.
    Status(u8),
}

impl Verdict {
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Verdict::Fine => 0,
            Verdict::Findings => 1,
            Verdict::AsFarAsKnown => 4,
            Verdict::Status(code) => code,
        }
    }
}

/// Failure of a command. It has an exit code, and lines for stderr. Each line contains the problem,
/// its place, the reason and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    code: u8,
    lines: Vec<String>,
}

impl Failure {
    /// Returns a failure with exit code 2, for wrong use or for input that cannot be read.
    pub(crate) fn wrong_use(line: impl ToString) -> Failure {
        Failure { code: 2, lines: vec![one_line(&line.to_string())] }
    }

    /// Returns a failure with exit code 3, for a missing driver or device, or for a place that
    /// cannot be written.
    pub(crate) fn environment_error(line: impl ToString) -> Failure {
        Failure { code: 3, lines: vec![one_line(&line.to_string())] }
    }

    /// Adds another failure's lines to this failure. The higher exit code counts.
    pub(crate) fn and(mut self, other: Failure) -> Failure {
        self.code = self.code.max(other.code);
        self.lines.extend(other.lines);
        self
    }

    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.code
    }
}

/// Replaces line breaks and other control characters by blanks. An argument or a driver's text may
/// contain them.
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
    fn failure_stays_on_one_line() {
        assert_eq!(Failure::wrong_use("a\nb\u{1b}[31mc\r\n").lines(), ["a b [31mc"]);
    }

    #[test]
    fn joined_failures_keep_every_line() {
        let both = Failure::wrong_use("one").and(Failure::wrong_use("two"));
        assert_eq!(both.lines(), ["one", "two"]);
    }
}
