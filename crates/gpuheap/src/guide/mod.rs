//! The guide: how to use GPU memory, with reasons.
//!
//! Each chapter is a page. Its code runs as tests on an emulated device, and asserts the claims of
//! the text. The programs in `examples/` at the root of the repository are longer: begin with
//! `cargo run --bin tour`.
//!
//! | chapter | answers |
//! |---|---|
//! | [`first_array`] | how is data uploaded and downloaded |
//! | [`uploading`] | how is a whole structure uploaded, and how do its types change |
//! | [`arithmetic`](mod@crate::arithmetic) | which computations need no kernel of your own: `+ - * /`, sums, groups |
//! | [`pools`] | why does the driver not see a free, and how does memory return to it |
//! | [`limits`] | how is a program kept to a share of the device |
//! | [`errors`] | how does a program distinguish errors, and which messages does the library log |
//! | [`freeing`] | how is an array freed before its scope ends |
//! | [`leaks`] | who holds the memory |
//! | [`batching`] | how is data processed that is larger than the device |
//! | [`flushing`] | how is a GPU cleared, and which memory remains |
//! | [`kinds`] | device, unified, pinned or registered memory |
//! | [`claims`] | which claims about GPU memory are wrong |
//! | [`threads`] | is a thread's memory freed at its end |
//! | [`cycles`] | which memory Rust does not free: reference cycles, `mem::forget` |
//! | [`streams`] | which work overlaps, and why does a free not wait |
//! | [`wsl2`] | how does WSL2 differ, and how is data processed that is too large |

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
