//! The explanation of an error's text.

use serde::Serialize;

use crate::words::{Amount, hanging};

/// Facts in the text of an out-of-memory error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Whose error the text is: `PyTorch`.
    pub program: &'static str,
    /// The cause, in a sentence.
    pub cause: String,
    /// The figures that the cause follows from, each with its name, bytes.
    pub evidence: Vec<(&'static str, u64)>,
    /// The one thing to do first: a command, a setting or a line of code.
    pub fix: String,
    /// `true` if the form of the text is from documentation or reports, and no such program was
    /// run.
    pub from_documentation: bool,
}

impl Explanation {
    /// Renders the explanation for `width` columns.
    pub fn render(&self, width: usize) -> String {
        let mut text = String::new();
        hanging(&mut text, &format!("{}: ", self.program), "  ", &self.cause, width);
        for (name, bytes) in &self.evidence {
            text.push_str(&format!("  {name:<28}{:>12}\n", Amount(*bytes).to_string()));
        }
        hanging(&mut text, "  fix: ", "       ", &self.fix, width);
        if self.from_documentation {
            let words = "the form of this text is known from documentation and reports alone";
            hanging(&mut text, "  note: ", "        ", words, width);
        }
        text
    }
}

/// Returns an explanation without figures, of a text whose form is from documentation.
pub(super) fn explanation(
    program: &'static str,
    cause: impl Into<String>,
    fix: impl Into<String>,
) -> Explanation {
    Explanation {
        program,
        cause: cause.into(),
        evidence: Vec::new(),
        fix: fix.into(),
        from_documentation: true,
    }
}

impl Explanation {
    /// Adds figures; those that are not known are left out.
    pub(super) fn with(mut self, figures: &[(&'static str, Option<u64>)]) -> Explanation {
        self.evidence.extend(figures.iter().filter_map(|(name, bytes)| Some((*name, (*bytes)?))));
        self
    }
}
