//! Programs that publish their GPU memory.
//!
//! A heap [joins](join), and its process gets a Unix socket in the user's runtime folder. A thread
//! answers questions there. A question and its answer are one line of JSON each.
//!
//! * [`Question`] and [`Answer`]: the protocol.
//! * [`join`] and [`Member`]: the answering side.
//! * [`survey`] and [`ask`]: the side that sends questions.
//! * `folder`: the folder of the sockets, its checks, and the removal of stale sockets.
//!
//! Works on Linux only: other systems identify the process at the other end of a socket
//! differently.
#![deny(unsafe_code)]

#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
mod folder;
#[cfg(target_os = "linux")]
mod kernel;
mod member;
mod protocol;
#[cfg(target_os = "linux")]
mod publisher;
#[cfg(target_os = "linux")]
mod server;
mod text;
#[cfg(target_os = "linux")]
mod wire;

#[cfg(target_os = "linux")]
pub use client::{Detail, Published, ask, of_process, survey};
#[cfg(target_os = "linux")]
pub use folder::{Socket, sockets, sockets_in};
pub use member::Member;
pub use protocol::{
    Access, Answer, HeapStatus, Held, Leaks, LibraryMemory, MOST_ENTRIES, OpenScope, Question,
    RECORDED, Recorded, Refusal, RefusalKind, Site, Status, parse_answer, parse_question,
};
#[cfg(target_os = "linux")]
pub use publisher::{Membership, join};

/// Handle of a heap that publishes its memory. On this system, no value of this type exists.
#[cfg(not(target_os = "linux"))]
pub enum Membership {}

/// Returns an error, because programs publish on Linux only.
///
/// # Errors
///
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn join(_: std::sync::Arc<dyn Member>, _: Access) -> std::io::Result<Membership> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "programs publish on Linux only"))
}
