//! Writes the texts that C functions return. They are lines for people, or JSON for programs.

use std::ffi::c_char;
use std::fmt::Display;

use crate::entry::{Failure, write_if_wanted};

/// Form of a text.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gpuheap_format {
    /// Lines for people. The wording may change between versions.
    Text = 0,
    /// One JSON object. The names of its members are stable. Later versions add members.
    Json = 1,
}

/// Destination of a text: the program's buffer, and its variable for the length of the whole text.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    pub(crate) buffer: *mut c_char,
    pub(crate) capacity: usize,
    pub(crate) length: *mut usize,
}

impl Room {
    /// Returns an error for a null buffer with a capacity above 0, before any work is done.
    pub(crate) fn check(self) -> Result<Room, Failure> {
        if self.buffer.is_null() && self.capacity > 0 {
            return Err(Failure::refused("the buffer is a null pointer, of a capacity above 0"));
        }
        Ok(self)
    }

    /// Writes a text, cut to fit the buffer, with a null at its end.
    ///
    /// # Safety
    ///
    /// The buffer is valid for writes of `capacity` bytes, and `length` is null or valid for a
    /// write.
    pub(crate) unsafe fn write(self, text: &str) {
        if let Some(room) = self.capacity.checked_sub(1) {
            let fits = (0..=room.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
            let fits = fits.unwrap_or(0);
            // SAFETY: the buffer has room for these bytes and a null.
            unsafe {
                self.buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), fits);
                self.buffer.add(fits).write(0);
            }
        }
        // SAFETY: `length` is null or valid for a write.
        unsafe { write_if_wanted(self.length, text.len()) };
    }
}

/// Makes a report. `format` is the number of a [`gpuheap_format`].
pub(crate) fn formatted(
    format: u32,
    text: impl Display,
    json: impl FnOnce() -> String,
) -> Result<String, Failure> {
    match format {
        text_number if text_number == gpuheap_format::Text as u32 => Ok(text.to_string()),
        json_number if json_number == gpuheap_format::Json as u32 => Ok(json()),
        other => Err(Failure::refused(format!(
            "the format is {other}; pass GPUHEAP_FORMAT_TEXT (0) or GPUHEAP_FORMAT_JSON (1)"
        ))),
    }
}

/// Returns a text with a null at its end, cut to fit `ROOM` bytes.
pub(crate) fn cut<const ROOM: usize>(text: &str) -> [c_char; ROOM] {
    let mut room = [0; ROOM];
    let end =
        (0..ROOM.min(text.len() + 1)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    for (at, byte) in text.as_bytes()[..end].iter().enumerate() {
        room[at] = *byte as c_char;
    }
    room
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_between_characters() {
        let as_text = |room: [c_char; 4]| room.map(|byte| byte as u8);
        assert_eq!(as_text(cut("ab")), [b'a', b'b', 0, 0]);
        assert_eq!(as_text(cut("abcd")), [b'a', b'b', b'c', 0]);
        assert_eq!(as_text(cut("abü")), [b'a', b'b', 0, 0]);
    }
}
