//! Writes a text about the recorded program's memory: its state after one event.

use gpuheap_trace::Trace;

use crate::Program;
use crate::moment::{Moment, OnStream, Piece};
use crate::text::{Amount, add_line, count, grouped};

/// Characters in a line of the map.
const COLUMNS: u64 = 64;
/// Approximate number of lines of the map.
const LINES: u64 = 16;
/// Number of holders that are shown.
const HOLDERS: usize = 8;

/// Renders the memory of the recorded program after the event with this number: by line of the
/// program, by stream, and as a map of addresses.
///
/// # Errors
/// Returns an error if the trace has no event with this number. The error names the last event.
pub fn render_moment(trace: &Trace, event: u64) -> Result<String, String> {
    let events = trace.events();
    let last = events.last().map_or(0, |event| u64::from(event.number));
    if event > last {
        return Err(format!(
            "{}: there is no event {}; give one from 0 to {last}",
            trace.name(),
            grouped(event)
        ));
    }
    // A failed request changes no memory, so the memory after it is the memory at its failure.
    let end = events.partition_point(|other| u64::from(other.number) <= event);
    let moment = Moment::after(trace, &Program::from_trace(trace), end);
    let mut text = String::new();
    add_line!(&mut text, "{} ({})", trace.name(), trace.format());
    add_line!(
        &mut text,
        "after event {} of {}, {:.3} s in: {} live in {}",
        grouped(event),
        grouped(last),
        moment.time_ns as f64 / 1e9,
        Amount(moment.live),
        count(moment.live_blocks, "block")
    );
    if let Some(held) = moment.held {
        add_line!(
            &mut text,
            "reserved {}: {} lost to rounding, {} pending, {} free",
            Amount(held.reserved),
            Amount(held.rounding),
            Amount(moment.pending),
            Amount(held.free)
        );
    }
    add_holders(&mut text, &moment);
    add_streams(&mut text, &moment);
    add_map(&mut text, &moment);
    Ok(text)
}

fn add_holders(text: &mut String, moment: &Moment) {
    let by = if moment.has_stacks { "by line of the program" } else { "by size" };
    add_line!(text, "\n{:>12}  {:>8}  {by}", "live", "blocks");
    for holder in moment.holders.iter().take(HOLDERS) {
        let bytes = Amount(holder.bytes).to_string();
        add_line!(text, "{bytes:>12}  {:>8}  {}", grouped(holder.blocks), holder.name);
    }
    let rest = &moment.holders[moment.holders.len().min(HOLDERS)..];
    if !rest.is_empty() {
        let bytes: u64 = rest.iter().map(|holder| holder.bytes).fold(0, u64::saturating_add);
        let blocks = rest.iter().map(|holder| holder.blocks).sum();
        let bytes = Amount(bytes).to_string();
        add_line!(text, "{bytes:>12}  {:>8}  others", grouped(blocks));
    }
}

fn add_streams(text: &mut String, moment: &Moment) {
    add_line!(
        text,
        "\n{:>18}  {:>12}  {:>12}  {:>12}  {:>12}",
        "stream",
        "live",
        "pending",
        "free",
        "reserved"
    );
    for OnStream { stream, live, pending, reserved, free } in &moment.streams {
        let amount = |bytes: &u64| Amount(*bytes).to_string();
        let stream = stream_name(*stream);
        add_line!(
            text,
            "{stream:>18}  {:>12}  {:>12}  {:>12}  {:>12}",
            amount(live),
            amount(pending),
            amount(free),
            amount(reserved)
        );
    }
}

fn stream_name(handle: u64) -> String {
    if handle == 0 { "default".to_owned() } else { format!("{handle:#x}") }
}

/// Adds a strip of characters for each stream. Each character stands for the same number of bytes.
fn add_map(text: &mut String, moment: &Moment) {
    let total: u64 = moment.pieces.iter().map(|piece| piece.bytes).fold(0, u64::saturating_add);
    if total == 0 {
        return;
    }
    let unit = (total / (COLUMNS * LINES)).max(512).next_power_of_two();
    add_line!(
        text,
        "\nby address, {} a character: # live, + in part, ~ pending, . free, | new range",
        Amount(unit)
    );
    let mut streams: Vec<u64> = moment.pieces.iter().map(|piece| piece.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    for stream in streams {
        add_line!(text, "stream {}", stream_name(stream));
        let pieces = moment.pieces.iter().filter(|piece| piece.stream == stream);
        let cells: Vec<char> = strip(pieces, unit);
        for row in cells.chunks(COLUMNS as usize) {
            add_line!(text, "  {}", row.iter().collect::<String>());
        }
    }
}

/// Returns the map's characters for ranges of addresses in order, one for each `unit` bytes.
fn strip<'a>(pieces: impl Iterator<Item = &'a Piece>, unit: u64) -> Vec<char> {
    let mut cells = Vec::new();
    // Live, pending and free bytes that the current character of the map stands for.
    let mut cell = [0_u64; 3];
    let close = |cell: &mut [u64; 3], cells: &mut Vec<char>| {
        let [live, pending, free] = *cell;
        match (live, pending, free) {
            (0, 0, 0) => return,
            (_, 0, 0) => cells.push('#'),
            (0, 0, _) => cells.push('.'),
            (0, ..) => cells.push('~'),
            _ => cells.push('+'),
        }
        *cell = [0; 3];
    };
    for piece in pieces {
        // Several small ranges share a character.
        if piece.is_start && cell.iter().sum::<u64>() > unit / 2 {
            close(&mut cell, &mut cells);
        }
        if piece.is_start && !cells.is_empty() && piece.bytes >= unit {
            close(&mut cell, &mut cells);
            cells.push('|');
        }
        let mut left = piece.bytes;
        while left > 0 {
            let room = unit - cell.iter().sum::<u64>();
            let part = left.min(room);
            cell[piece.state as usize] += part;
            left -= part;
            if part == room {
                close(&mut cell, &mut cells);
            }
        }
    }
    close(&mut cell, &mut cells);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moment::PieceState;

    #[test]
    fn map_shows_each_range() {
        let piece = |bytes, state, is_start| Piece { bytes, stream: 0, state, is_start };
        let pieces = [
            piece(3, PieceState::Live, true),
            piece(2, PieceState::Free, false),
            piece(1, PieceState::Pending, false),
            piece(4, PieceState::Pending, true),
        ];
        let shown: String = strip(pieces.iter(), 2).into_iter().collect();
        assert_eq!(shown, "#+~|~~");
    }
}
