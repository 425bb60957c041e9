//! Styles, figures and curves of a frame.

use gpuheap_text::Amount;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::Span;

use crate::history::Growth;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Palette {
    /// `false` if the terminal has no colours, or `NO_COLOR` is set.
    pub(crate) is_coloured: bool,
}

impl Palette {
    fn coloured(self, color: Color) -> Style {
        if self.is_coloured { Style::new().fg(color) } else { Style::new() }
    }

    /// Style of text that is less important.
    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn heading(self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// Style of growth and of findings.
    pub(super) fn alert(self) -> Style {
        self.coloured(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    /// Style of curves and bars.
    pub(super) fn curve(self) -> Style {
        self.coloured(Color::Green)
    }
}

/// Formats bytes with a unit, in at most 11 columns.
pub(super) fn size(bytes: u64) -> String {
    Amount(bytes).to_string()
}

/// Formats a growth with its sign, in 12 columns.
pub(super) fn growth(growth: Option<Growth>, palette: Palette) -> Span<'static> {
    let Some(growth) = growth else { return Span::raw(format!("{:>12}", "-")) };
    let amount = size(growth.bytes.unsigned_abs());
    match growth.bytes {
        0 => Span::raw(format!("{:>12}", "0")),
        ..0 => Span::raw(format!("{:>12}", format!("-{amount}"))),
        1.. => Span::styled(format!("{:>12}", format!("+{amount}")), palette.alert()),
    }
}

/// Draws a curve such as `▁▂▅█`, with a column for each figure. The column of `most` is full.
pub(super) fn curve(figures: &[u64], most: u64) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let level = |figure: u64| {
        let level = u128::from(figure) * 8 / u128::from(most.max(1));
        LEVELS[(level as usize).min(7)]
    };
    figures.iter().map(|&figure| level(figure)).collect()
}
