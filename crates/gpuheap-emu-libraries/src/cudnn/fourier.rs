//! Workspaces of the engines that compute convolutions by Fourier transforms. No other engines have
//! workspaces as large.
//!
//! The formulas were found from the plans that cuDNN 9.19 offered on an H200 (2026-11-24). Of 2,837
//! plans, 2,827 agree within 3 % or 1 MiB.

use super::convolution::{Convolution, Pass, product};

/// Edge of the tiles into which images are split to compute the gradient of the input.
const TILE: u64 = 32;

/// Returns the size of a square's Fourier transform, in bytes. A number has 2 × 4 bytes. By
/// symmetry, only half of the numbers are stored.
fn spectrum(edge: u64) -> u64 {
    product(&[edge, edge / 2 + 1, 8])
}

/// Maximum number of a convolution's groups for which Fourier transforms exist at the same time.
const GROUPS: u64 = 8;

/// Returns the workspace for a convolution by Fourier transforms, in bytes.
pub(super) fn workspace(it: &Convolution) -> u64 {
    let stride = it.window.stride.iter().copied().max().unwrap_or(1).max(1);
    if it.pass == Pass::Input && stride > 1 {
        return strided(it, stride);
    }
    let groups = it.groups().min(GROUPS);
    let some = |all: u64| all / it.groups() * groups;
    let (n, c, k) = (it.x.samples(), some(it.x.channels()), some(it.y.channels()));
    let (inputs, filters, outputs) =
        (n.saturating_mul(c), it.w.channels().saturating_mul(k), n.saturating_mul(k));
    // Tensors with several groups or with adjacent channels are copied.
    let copies = if it.channels_last || it.groups() > 1 {
        let [x, w, y] = it.padded(1).map(some);
        let has_filter = it.channels_last && it.taps() > 1;
        x.saturating_add(y).saturating_add(if has_filter { w } else { 0 })
    } else {
        0
    };
    let edge = || {
        let padding = it.window.padding.iter().copied().chain(std::iter::repeat(0));
        let sizes = it.x.positions().iter().zip(padding);
        let most = sizes.map(|(&size, padding)| size.saturating_add(padding.saturating_mul(2)));
        most.max().unwrap_or(1).clamp(16, 1 << 31).next_power_of_two()
    };
    // One buffer holds the transforms of both operands, or the transforms of the result.
    let both = |one: u64, other: u64, result: u64| {
        one.saturating_add(other).max(result).saturating_mul(2).saturating_mul(spectrum(edge()))
    };
    let transforms =
        match it.pass {
            Pass::Forward => both(filters, inputs, outputs)
                .saturating_add(some(it.w.elements()).saturating_mul(4)),
            Pass::Filter => both(inputs, outputs, filters)
                .saturating_add(some(it.y.elements()).saturating_mul(4)),
            Pass::Input => {
                let images = inputs.saturating_add(outputs).saturating_mul(tiles_at_once(it, 1));
                filters.saturating_add(images).saturating_mul(spectrum(TILE))
            }
        };
    transforms.saturating_add(copies)
}

/// Returns the number of an image's tiles that are transformed at once.
fn tiles_at_once(it: &Convolution, stride: u64) -> u64 {
    let sizes = it.y.positions().iter().zip(it.w.positions());
    let span = sizes.map(|(&size, &filter)| size.saturating_add(filter.div_ceil(stride)));
    if span.max().unwrap_or(0) <= TILE + 1 { 1 } else { 2 }
}

/// Returns the workspace, in bytes, for the input's gradient of a strided convolution. cuDNN splits
/// the input and the filter into `stride` parts along each of two dimensions. The workspace holds
/// the Fourier transforms of the parts, and a copy of each tensor.
fn strided(it: &Convolution, stride: u64) -> u64 {
    let groups = it.groups().min(GROUPS);
    let c = it.w.channels().next_multiple_of(2);
    let k = (it.y.channels() / it.groups()).next_multiple_of(8);
    let images = it.x.samples().saturating_mul(groups);
    let parts = stride.saturating_mul(stride);
    let (inputs, filters, outputs) = (
        images.saturating_mul(c),
        groups.saturating_mul(k).saturating_mul(c),
        images.saturating_mul(k),
    );
    let images = parts.saturating_mul(inputs).saturating_add(outputs);
    let transforms = parts
        .saturating_mul(filters)
        .saturating_add(images.saturating_mul(tiles_at_once(it, stride)))
        .saturating_mul(spectrum(TILE));
    let positions = |each: &mut dyn Iterator<Item = u64>| each.fold(1, u64::saturating_mul);
    let part = |&size: &u64| size.div_ceil(stride);
    let filter = positions(&mut it.w.positions().iter().map(|size| part(size) * stride));
    let input = positions(&mut it.x.positions().iter().map(|size| part(size) * stride));
    let sizes = it.y.positions().iter().zip(it.w.positions());
    let output = positions(
        &mut sizes.map(|(&size, filter)| size.saturating_add(part(filter)).saturating_sub(1)),
    );
    let copied = filters
        .saturating_mul(filter)
        .saturating_add(inputs.saturating_mul(input))
        .saturating_add(outputs.saturating_mul(output));
    transforms.saturating_add(copied.saturating_mul(it.x.element))
}
