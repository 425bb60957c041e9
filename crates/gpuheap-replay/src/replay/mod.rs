//! Replays of one trace through one pool.

mod bench;
mod device;
mod error;
mod heaps;
mod measure;
pub(crate) mod minimum;
mod model;
mod options;
mod pool;
mod pool_report;
mod stop;

pub(crate) use self::bench::{Bench, Memory};
pub use self::device::{DeviceChoice, DeviceUsed};
pub use self::error::ReplayError;
pub use self::minimum::Minimum;
pub(crate) use self::model::{attempt, attempt_torch, run_torch, torch_settings};
pub use self::options::{Options, Progress, Silent};
pub use self::pool::Pool;
pub use self::pool_report::PoolReport;
pub use self::stop::{Cause, Stop};
