//! Assigns dense numbers to the keys of rows, and merges the aggregates of groups on the host.
//!
//! [`factorize`] numbers the distinct keys of one or several [`Column`]s in their order. A program
//! aggregates a batch of rows by these numbers, on a device or elsewhere. A [`Merger`] merges the
//! aggregates of batches. Above its memory limit, a merger writes sorted runs to temporary files.
//!
//! ```
//! use gpuheap_groups::{Column, Missing, NumberType, factorize};
//!
//! # fn main() -> Result<(), gpuheap_groups::Error> {
//! let prices: Vec<u8> = [2.5_f64, 0.5, f64::NAN, 2.5].iter().flat_map(|x| x.to_le_bytes()).collect();
//! let column = Column::numbers(NumberType::F64, &prices, None)?;
//! let dense = factorize(&[column], Missing::LeftOut)?;
//! assert_eq!(dense.codes, [1, 0, u32::MAX, 1]);
//! assert_eq!(dense.keys.len(), 2);
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod column;
mod dense;
mod error;
mod keys;
mod merge;
mod plan;
mod rows;
mod run;

pub use column::{Column, NumberType};
pub use dense::{Dense, Missing, factorize};
pub use error::Error;
pub use keys::{KeyColumn, KeyType, Keys};
pub use merge::{Groups, Merged, Merger};
pub use plan::{Aggregate, Part, Plan, ResultColumn};
pub use rows::{Matches, join, sort, take_text, true_rows, unique};
