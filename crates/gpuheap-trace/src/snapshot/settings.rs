//! Reads the settings of the allocator that wrote the snapshot.

use super::plain::{Path, Plain};
use super::value::Value;
use crate::Error;
use crate::model::AllocatorSettings;

/// Reads `allocator_settings`. A missing key gets PyTorch's default value.
pub(super) fn read(
    plain: &Plain<'_>,
    settings: Value,
    path: &Path<'_>,
) -> Result<AllocatorSettings, Error> {
    let keys = [
        "PYTORCH_CUDA_ALLOC_CONF",
        "max_split_size",
        "garbage_collection_threshold",
        "expandable_segments",
        "roundup_power2_divisions",
    ];
    let [text, max_split, threshold, expandable, divisions] = plain.fields(settings, path, keys)?;
    let text = text.optional(Plain::text)?.unwrap_or_default();
    // -1 means no limit.
    let max_split = max_split.optional(|plain, most, path| match most {
        Value::Int(..0) => Ok(None),
        most => plain.number(most, path).map(Some),
    });
    let mut read = AllocatorSettings {
        text: String::from_utf8_lossy(text).into_owned(),
        max_split_size: max_split?.flatten(),
        garbage_collection_threshold: threshold.optional(Plain::float)?.unwrap_or(0.0),
        expandable_segments: expandable.optional(Plain::truth)?.unwrap_or(false),
        roundup_power2_divisions: Vec::new(),
    };
    let pairs = divisions.optional(|plain, value, path| plain.pairs(value, path))?;
    for (power, value) in pairs.into_iter().flatten() {
        let power = std::str::from_utf8(power).ok().and_then(|text| text.parse().ok());
        if let Some(power) = power {
            let divisions = plain.number(value, &divisions.path())?;
            read.roundup_power2_divisions.push((power, divisions));
        }
    }
    read.roundup_power2_divisions.sort_unstable();
    Ok(read)
}
