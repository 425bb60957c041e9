//! Settings of the allocator that the snapshot is from.

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
    const TEXT: usize = 0;
    const MAX_SPLIT: usize = 1;
    const THRESHOLD: usize = 2;
    const EXPANDABLE: usize = 3;
    const DIVISIONS: usize = 4;
    let keys = [
        "PYTORCH_CUDA_ALLOC_CONF",
        "max_split_size",
        "garbage_collection_threshold",
        "expandable_segments",
        "roundup_power2_divisions",
    ];
    let fields = plain.fields(settings, path, keys)?;
    let mut read = AllocatorSettings::default();
    if let Some(text) = fields.optional(TEXT) {
        let text = plain.text(text, &fields.path(TEXT))?;
        read.text = String::from_utf8_lossy(text).into_owned();
    }
    // -1 means no limit.
    if let Some(most) = fields.optional(MAX_SPLIT)
        && !matches!(most, Value::Int(..0))
    {
        read.max_split_size = Some(plain.number(most, &fields.path(MAX_SPLIT))?);
    }
    if let Some(threshold) = fields.optional(THRESHOLD) {
        read.garbage_collection_threshold = plain.float(threshold, &fields.path(THRESHOLD))?;
    }
    if let Some(expandable) = fields.optional(EXPANDABLE) {
        read.expandable_segments = plain.truth(expandable, &fields.path(EXPANDABLE))?;
    }
    if let Some(divisions) = fields.optional(DIVISIONS) {
        let path = fields.path(DIVISIONS);
        for (power, divisions) in plain.pairs(divisions, &path)? {
            let power = std::str::from_utf8(power).ok().and_then(|text| text.parse().ok());
            if let Some(power) = power {
                let divisions = plain.number(divisions, &path)?;
                read.roundup_power2_divisions.push((power, divisions));
            }
        }
        read.roundup_power2_divisions.sort_unstable();
    }
    Ok(read)
}
