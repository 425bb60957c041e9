//! Dialogs above a frame.

use gpuheap_text::{cut, hanging};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::Line;

use super::style::Palette;
use crate::view::{DIALOG_WIDTH, Dialog, View};

pub(super) fn draw(view: &View, buffer: &mut Buffer, palette: Palette) {
    let (title, lines, scroll) = match &view.dialog {
        Dialog::None => return,
        Dialog::Text { title, text, scroll } => {
            (title.clone(), text.lines().map(|line| Line::raw(line.to_owned())).collect(), *scroll)
        }
        Dialog::Findings { selected } => findings(view, *selected, buffer.area().height),
        Dialog::Looking { pid } => {
            let text = format!("looks for memory of pid {pid} to free; some seconds");
            ("Free".to_owned(), vec![Line::raw(text)], 0)
        }
        Dialog::Question { text, .. } => {
            let mut words = String::new();
            hanging(&mut words, "", "", text, DIALOG_WIDTH);
            words.push_str("\ny yes   n no\n");
            let lines = words.lines().map(|line| Line::raw(line.to_owned())).collect();
            ("Free".to_owned(), lines, 0)
        }
    };
    boxed(buffer, &title, &lines, scroll, palette);
}

fn findings(view: &View, selected: usize, height: u16) -> (String, Vec<Line<'static>>, usize) {
    let title = match view.is_busy {
        true => "Findings; the doctor examines".to_owned(),
        false => "Findings; Enter explains one".to_owned(),
    };
    let found = view.figures.examination.as_ref().map(|found| &found.findings[..]);
    let row = |(index, finding): (usize, &gpuheap_doctor::Finding)| {
        let mark = finding.severity.mark();
        let text = cut(&format!("{mark} {}  {}", finding.rule, finding.fact), DIALOG_WIDTH);
        match index == selected {
            true => Line::styled(
                format!("{text:<DIALOG_WIDTH$}"),
                Style::new().add_modifier(Modifier::REVERSED),
            ),
            false => Line::raw(text),
        }
    };
    let lines: Vec<Line<'static>> = match found {
        None => vec![Line::raw("not examined yet")],
        Some([]) => vec![Line::raw("nothing found")],
        Some(findings) => findings.iter().enumerate().map(row).collect(),
    };
    let shown = usize::from(height.saturating_sub(4));
    (title, lines, (selected + 1).saturating_sub(shown))
}

/// Draws a box with lines in the middle of the frame.
fn boxed(buffer: &mut Buffer, title: &str, lines: &[Line<'_>], scroll: usize, palette: Palette) {
    let area = *buffer.area();
    if area.width < 10 || area.height < 3 {
        return;
    }
    let width = (DIALOG_WIDTH as u16 + 4).min(area.width);
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2);
    let height = height.min(area.height.saturating_sub(2)).max(3);
    let (x, y) = (area.x + (area.width - width) / 2, area.y + (area.height - height) / 2);
    let inner = usize::from(width.saturating_sub(2));
    let style = palette.heading();
    for row in y..y + height {
        buffer.set_stringn(x, row, " ".repeat(width.into()), width.into(), Style::reset());
    }
    let title = cut(&format!(" {title} "), inner);
    let rule = "─".repeat(inner.saturating_sub(title.chars().count()));
    buffer.set_stringn(x, y, format!("┌{title}{rule}┐"), width.into(), style);
    let shown = usize::from(height.saturating_sub(2));
    for (row, line) in (y + 1..).zip(lines.iter().skip(scroll).take(shown)) {
        buffer.set_line(x + 2, row, line, width.saturating_sub(4));
    }
    for row in y + 1..(y + height).saturating_sub(1) {
        buffer.set_stringn(x, row, "│", 1, style);
        buffer.set_stringn(x + width.saturating_sub(1), row, "│", 1, style);
    }
    let more = match lines.len().saturating_sub(scroll + shown) {
        0 => " Esc closes ".to_owned(),
        more => format!(" {more} more: j  Esc closes "),
    };
    let more = cut(&more, inner);
    let rule = "─".repeat(inner.saturating_sub(more.chars().count()));
    buffer.set_stringn(x, y + height - 1, format!("└{rule}{more}┘"), width.into(), style);
}
