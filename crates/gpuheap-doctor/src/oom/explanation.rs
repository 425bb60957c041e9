//! The explanation of an error's text.

use serde::{Serialize, Serializer};
use serde_json::json;

use gpuheap_text::{Amount, hanging};

/// Chapter of the guide about WSL2.
pub(crate) const WSL2_CHAPTER: &str = "crates/gpuheap/src/guide/wsl2.md";

/// Explanation of an out-of-memory error, from its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Program or library that wrote the text: `PyTorch`.
    pub program: &'static str,
    /// Cause, in a sentence.
    pub cause: String,
    /// Figures from which the cause follows, in bytes, each with its name.
    #[serde(serialize_with = "figures")]
    pub evidence: Vec<(&'static str, u64)>,
    /// `true` if the text rounds the figures.
    pub is_rounded: bool,
    /// First thing to do: a command, a setting or a line of code.
    pub fix: String,
    /// Further things to do, cheapest first.
    pub alternatives: Vec<String>,
    /// Chapter of the guide, as a path in the repository.
    pub guide: Option<&'static str>,
    /// Limits of the explanation, each a sentence.
    pub notes: Vec<String>,
    /// `true` if the form of the text is known from documentation or reports only, and not from a
    /// run.
    pub from_documentation: bool,
}

/// Serializes figures as objects with a name and bytes.
fn figures<S: Serializer>(figures: &[(&str, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    let objects = figures.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes }));
    serializer.collect_seq(objects)
}

impl Explanation {
    /// Renders the explanation as JSON that `docs/explain.schema.json` describes.
    pub fn to_json(&self) -> String {
        crate::json(self)
    }

    /// Renders the explanation for `width` columns.
    pub fn render(&self, width: usize) -> String {
        let mut text = String::new();
        hanging(&mut text, &format!("{}: ", self.program), "  ", &self.cause, width);
        for (name, bytes) in &self.evidence {
            text.push_str(&format!("  {name:<28}{:>12}\n", Amount(*bytes).to_string()));
        }
        hanging(&mut text, "  fix: ", "       ", &self.fix, width);
        for other in &self.alternatives {
            hanging(&mut text, "  or:  ", "       ", other, width);
        }
        if let Some(guide) = self.guide {
            text.push_str(&format!("  guide: {guide}\n"));
        }
        for note in &self.notes {
            hanging(&mut text, "  note: ", "        ", note, width);
        }
        if self.from_documentation {
            let words = "the form of this text is known from documentation and reports alone";
            hanging(&mut text, "  note: ", "        ", words, width);
        }
        text
    }

    /// Adds the figures that are known.
    pub(super) fn with_figures(mut self, figures: &[(&'static str, Option<u64>)]) -> Explanation {
        self.evidence.extend(figures.iter().filter_map(|(name, bytes)| Some((*name, (*bytes)?))));
        self
    }

    /// Adds further things to do, cheapest first.
    pub(super) fn with_alternatives(mut self, others: &[&str]) -> Explanation {
        self.alternatives.extend(others.iter().map(|other| (*other).to_owned()));
        self
    }

    /// Adds a limit of the explanation.
    pub(super) fn with_note(mut self, note: impl Into<String>) -> Explanation {
        self.notes.push(note.into());
        self
    }

    /// Names the chapter about WSL2.
    pub(super) fn with_wsl2_guide(mut self) -> Explanation {
        self.guide = Some(WSL2_CHAPTER);
        self
    }

    /// Marks the figures as rounded, or as exact.
    pub(super) fn rounded(mut self, is_rounded: bool) -> Explanation {
        self.is_rounded = is_rounded;
        self
    }

    /// Records whether the error's wording was seen in a run, or is known from documentation only.
    pub(super) fn confirmed(mut self, is_confirmed: bool) -> Explanation {
        self.from_documentation = !is_confirmed;
        self
    }
}

/// Returns an explanation of an error of `program`, without figures. Assumes that the error's text
/// is known from documentation only.
pub(super) fn explanation(
    program: &'static str,
    cause: impl Into<String>,
    fix: impl Into<String>,
) -> Explanation {
    Explanation {
        program,
        cause: cause.into(),
        evidence: Vec::new(),
        is_rounded: false,
        fix: fix.into(),
        alternatives: Vec::new(),
        guide: None,
        notes: Vec::new(),
        from_documentation: true,
    }
}
