//! Sums up copies between host and device by line of the program.

use std::collections::BTreeMap;

use gpuheap_trace::{CopyDirection, CopyMemory, Trace};

/// Copies with the same direction, kind of host memory, and site.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopySite {
    /// Direction.
    pub direction: CopyDirection,
    /// Memory on the host's side.
    pub memory: CopyMemory,
    /// Name of the site.
    pub site: String,
    /// Number of copies.
    pub count: u64,
    /// Bytes of these copies.
    pub bytes: u64,
    /// Time in the calls, in nanoseconds.
    pub call_ns: u64,
    /// Number of uploads whose data the site had uploaded before.
    pub repeated: u64,
    /// Bytes of these uploads.
    pub repeated_bytes: u64,
}

/// Returns the sites at which the recorded process copied memory, most bytes first. The list is
/// empty if copies were not recorded.
pub(crate) fn by_site(trace: &Trace) -> Vec<CopySite> {
    let mut found: BTreeMap<(CopyDirection, CopyMemory, String), CopySite> = BTreeMap::new();
    for copies in trace.recording().iter().flat_map(|recording| &recording.copies) {
        let (direction, memory) = (copies.direction, copies.memory);
        let site = trace.site(copies.stack);
        let row = found.entry((direction, memory, site)).or_insert_with_key(|(_, _, site)| {
            let (site, (count, bytes, call_ns), repeated) = (site.clone(), (0, 0, 0), 0);
            let repeated_bytes = 0;
            CopySite { direction, memory, site, count, bytes, call_ns, repeated, repeated_bytes }
        });
        for (sum, one) in [
            (&mut row.count, copies.count),
            (&mut row.bytes, copies.bytes),
            (&mut row.call_ns, copies.call_ns),
            (&mut row.repeated, copies.repeated),
            (&mut row.repeated_bytes, copies.repeated_bytes),
        ] {
            *sum = sum.saturating_add(one);
        }
    }
    let mut rows: Vec<_> = found.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}
