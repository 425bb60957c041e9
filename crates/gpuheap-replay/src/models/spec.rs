//! Builds models from the names and settings that a user types.

use gpuheap::Size;

use super::cuda::{Async, Cuda};
use super::cupy::Cupy;
use super::rmm::{Arena, Binning, Pool};
use super::torch::Torch;
use super::{Model, SettingError};
use crate::text::quoted;

/// All names that [`build`] accepts.
pub const NAMES: [&str; 8] =
    ["torch", "rmm:pool", "rmm:arena", "rmm:binning", "rmm:async", "cupy", "cuda:async", "cuda"];

/// Makes the model that `text` names, on a device with `device_memory` bytes.
///
/// | text | settings |
/// |---|---|
/// | `torch` | as `PYTORCH_CUDA_ALLOC_CONF` holds them: `torch:expandable_segments:True` |
/// | `rmm:pool` | `initial_pool_size` (default: half of the device), `maximum_pool_size` |
/// | `rmm:arena` | `arena_size` (default: half of the device) |
/// | `rmm:binning` | `min_size_exponent` (18), `max_size_exponent` (22); over `cudaMalloc` |
/// | `rmm:async` | `release_threshold`, without effect: it depends on waits that no trace has |
/// | `cupy` | `limit` |
/// | `cuda:async` | none: the pool of `cudaMallocAsync`, without RMM |
/// | `cuda` | none |
///
/// Sizes are bytes or have a unit, as [`Size::parse`] reads them.
///
/// ```
/// use gpuheap_replay::models::build;
///
/// let model = build("rmm:pool:initial_pool_size:1GiB,maximum_pool_size:8GiB", 16 << 30)?;
/// assert_eq!(model.figures().reserved, 1 << 30);
/// assert!(build("rmm:pools", 16 << 30).is_err());
/// # Ok::<(), gpuheap_replay::models::SettingError>(())
/// ```
///
/// # Errors
/// Returns an error if no model has the name, or if the model has no such setting or value. The
/// error lists the known models, or names the nearest setting.
pub fn build(text: &str, device_memory: u64) -> Result<Box<dyn Model + Send>, SettingError> {
    let Some(name) = name_of(text) else {
        return Err(SettingError::new(
            format!("there is no allocator {}", quoted(text)),
            format!("known are {}", NAMES.join(", ")),
        ));
    };
    let settings = text[name.len()..].trim_start_matches(':');
    if name == "torch" {
        return Ok(Box::new(Torch::new(settings.parse()?, device_memory)));
    }
    let sizes = |names: &[&str]| sizes(name, settings, names);
    Ok(match name {
        "rmm:pool" => {
            let given = sizes(&["initial_pool_size", "maximum_pool_size"])?;
            let default = device_memory.min(1 << 52) / 2 / 256 * 256;
            let initial = given[0].unwrap_or(default.min(given[1].unwrap_or(u64::MAX)));
            Box::new(Pool::new(device_memory, initial, given[1])?)
        }
        "rmm:arena" => Box::new(Arena::new(device_memory, sizes(&["arena_size"])?[0])?),
        "rmm:binning" => {
            let given = sizes(&["min_size_exponent", "max_size_exponent"])?;
            let exponent = |given: Option<u64>, default| {
                given.map_or(default, |given| u32::try_from(given).unwrap_or(u32::MAX))
            };
            let (smallest, largest) = (exponent(given[0], 18), exponent(given[1], 22));
            Box::new(Binning::new(Cuda::new(device_memory), smallest, largest)?)
        }
        "rmm:async" => {
            sizes(&["release_threshold"])?;
            Box::new(Async::new(device_memory, "rmm:async"))
        }
        "cuda:async" => {
            sizes(&[])?;
            Box::new(Async::new(device_memory, "cuda:async"))
        }
        "cupy" => Box::new(Cupy::new(device_memory, sizes(&["limit"])?[0])?),
        _ => {
            sizes(&[])?;
            Box::new(Cuda::new(device_memory))
        }
    })
}

/// Returns the model's name at the start of `text`. Settings may follow the name. `None` if no
/// model has the name.
pub(crate) fn name_of(text: &str) -> Option<&'static str> {
    // The first name that fits is taken, so `cuda:async` precedes its prefix `cuda` in the list.
    NAMES.into_iter().find(|name| {
        text.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    })
}

/// Returns the values of `names` in `name:value,name:value`.
fn sizes(model: &str, settings: &str, names: &[&str]) -> Result<Vec<Option<u64>>, SettingError> {
    let mut values = vec![None; names.len()];
    for pair in settings.split(',').filter(|pair| !pair.trim().is_empty()) {
        let (name, value) = pair.split_once(':').unwrap_or((pair, ""));
        let Some(at) = names.iter().position(|known| *known == name.trim()) else {
            return Err(SettingError::unknown(&format!("{model} has no setting"), name, names));
        };
        // Zero, with or without a unit, is a valid size here.
        let is_zero = value.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic()) == "0";
        values[at] = Some(match (value.trim().parse(), Size::parse(value)) {
            _ if is_zero => 0,
            (Ok(bytes), _) | (_, Ok(Size::Bytes(bytes))) => bytes,
            _ => {
                let name = names[at];
                return Err(SettingError::new(
                    format!("{name} has the value {}", quoted(value)),
                    format!("give bytes or a size like 8GiB, for example {model}:{name}:8GiB"),
                ));
            }
        });
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: u64 = 8 << 30;

    #[test]
    fn model_is_built_by_its_name() {
        for name in NAMES {
            let model = build(name, DEVICE).unwrap();
            assert!(model.name().starts_with(name), "{name}: {}", model.name());
            build(&model.name(), DEVICE).unwrap();
        }
        let model = build("torch:max_split_size_mb:64", DEVICE).unwrap();
        assert_eq!(model.name(), "torch:max_split_size_mb:64");
        build("rmm:pool:initial_pool_size:0MiB", DEVICE).unwrap();
        let half = build("rmm:pool", DEVICE).unwrap();
        assert_eq!(half.figures().reserved, DEVICE / 2);
    }

    #[test]
    fn wrong_text_names_the_right_one() {
        for (text, right) in [
            ("pytorch", "torch"),
            ("rmm:poole:limit:3", "rmm:pool"),
            ("rmm", "rmm:"),
            ("cuppy:limit:4GiB", "cupy"),
            ("cupy:limits:4GiB", "limit"),
            ("cupy:limit:4GX", "4GX"),
            ("rmm:pool:initial_pool:4GiB", "initial_pool_size"),
            ("rmm:pool:initial_pool_size:100", "256"),
            ("rmm:binning:min_size_exponent:99", "exponents"),
            ("rmm:arena:arena_size:99TiB", "lower it"),
            ("cuda:limit:4", "limit"),
            ("torch:max_split_size:64", "max_split_size_mb"),
            ("", "cuda"),
        ] {
            let error = build(text, DEVICE).map(|model| model.name()).unwrap_err().to_string();
            assert!(error.contains(right), "{text}: {error}");
        }
    }
}
