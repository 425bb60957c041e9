//! Reads and writes lines on a socket, within limits of length and time.

use std::io::{self, Error, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::net::SendFlags;

/// Reads a line of at most `most` bytes, without its newline. The end of the stream ends a line
/// too.
pub(crate) fn read_line(mut stream: &UnixStream, most: usize, end: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut piece = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left(end)?))?;
        let count = match stream.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read.map_err(in_time)?,
        };
        let piece = &piece[..count];
        let ends = piece.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&piece[..ends.unwrap_or(count)]);
        if line.len() > most {
            let text = format!("the line is longer than {most} bytes");
            return Err(Error::new(ErrorKind::InvalidData, text));
        }
        if ends.is_some() || count == 0 {
            return Ok(line);
        }
    }
}

pub(crate) fn write_line(stream: &UnixStream, line: &str, end: Instant) -> io::Result<()> {
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        // Without the flag, writing to a closed socket would raise SIGPIPE, and end a C program.
        match rustix::net::send(stream, rest, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            sent => rest = &rest[sent.map_err(|error| in_time(error.into()))?..],
        }
    }
    Ok(())
}

fn left(end: Instant) -> io::Result<std::time::Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

/// Replaces the kernel's error for a timeout by [`late`].
fn in_time(error: Error) -> Error {
    if error.kind() == ErrorKind::WouldBlock { late() } else { error }
}

fn late() -> Error {
    Error::new(ErrorKind::TimedOut, "the time limit was reached")
}
