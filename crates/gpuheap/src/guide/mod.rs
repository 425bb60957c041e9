//! The guide: what to do with GPU memory, and why.
//!
//! Each chapter is a page, and every block of code in it runs as a test, on an emulated device, and
//! asserts what the text claims. The programs in `examples/` at the root of the repository are the
//! same things at full length: `cargo run --bin tour` is the place to begin.
//!
//! | chapter | answers |
//! |---|---|
//! | [`first_array`] | how does data get to the device and back |
//! | [`uploading`] | how does a whole structure, and what happens to its types |
//! | [`arithmetic`](mod@crate::arithmetic) | what can be computed without a kernel of one's own: `+ - * /`, sums, groups |
//! | [`pools`] | why does the driver not see a free, and how does memory go back |
//! | [`limits`] | how is a program kept to a share of the device |
//! | [`errors`] | how does a program tell errors apart, and what does the library log |
//! | [`freeing`] | how is an array freed before its scope ends |
//! | [`leaks`] | who holds the memory |
//! | [`batching`] | how is data worked on that is larger than the device |
//! | [`flushing`] | how is the GPU cleared, and what can that not mean |
//! | [`kinds`] | device, unified, pinned or registered memory |
//! | [`claims`] | which claims about GPU memory are not so |
//! | [`threads`] | what happens to a thread's memory at its end |
//! | [`cycles`] | what Rust does not free: reference cycles, `mem::forget` |
//! | [`streams`] | what runs beside what, and why a free need not wait |
//! | [`wsl2`] | what is different on WSL2, and data that is too large |

#[doc = include_str!("first_array.md")]
pub mod first_array {}

#[doc = include_str!("uploading.md")]
pub mod uploading {}

#[doc = include_str!("pools.md")]
pub mod pools {}

#[doc = include_str!("limits.md")]
pub mod limits {}

#[doc = include_str!("errors.md")]
pub mod errors {}

#[doc = include_str!("freeing.md")]
pub mod freeing {}

#[doc = include_str!("leaks.md")]
pub mod leaks {}

#[doc = include_str!("batching.md")]
pub mod batching {}

#[doc = include_str!("flushing.md")]
pub mod flushing {}

#[doc = include_str!("kinds.md")]
pub mod kinds {}

#[doc = include_str!("claims.md")]
pub mod claims {}

#[doc = include_str!("threads.md")]
pub mod threads {}

#[doc = include_str!("cycles.md")]
pub mod cycles {}

#[doc = include_str!("streams.md")]
pub mod streams {}

#[doc = include_str!("wsl2.md")]
pub mod wsl2 {}
