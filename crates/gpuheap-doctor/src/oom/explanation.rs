//! The explanation of an error's text.

use serde::Serialize;

use crate::words::{Amount, hanging};

/// Explanation of an out-of-memory error, from its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Program or library that wrote the text: `PyTorch`.
    pub program: &'static str,
    /// Cause, in a sentence.
    pub cause: String,
    /// Figures behind the cause, each with its name, bytes.
    pub evidence: Vec<(&'static str, u64)>,
    /// First thing to do: a command, a setting or a line of code.
    pub fix: String,
    /// `true` if the form of the text is known from documentation or reports only, and not from a
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

/// Makes an explanation without figures, for a text known from documentation only.
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
    /// Adds the figures that are known.
    pub(super) fn with(mut self, figures: &[(&'static str, Option<u64>)]) -> Explanation {
        self.evidence.extend(figures.iter().filter_map(|(name, bytes)| Some((*name, (*bytes)?))));
        self
    }
}
