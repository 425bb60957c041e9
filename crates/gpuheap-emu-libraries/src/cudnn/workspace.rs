//! Bytes of the workspace of a graph's engine, by rules that were found on an H200.
//!
//! 567 convolutions of ResNet-50, a UNet and a vision transformer were measured in 2- and 4-byte
//! types, with cuDNN 9.19 and PyTorch 2.11, and attention in two shapes. Of the convolutions 470
//! are within 10 % or 1 MiB; the others are of images with 3 channels and of gradients of filters,
//! mostly. Engines differ between cards, so that this is an estimate for other ones.

/// Tensor of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shape {
    pub(crate) element: u64,
    pub(crate) sizes: Vec<u64>,
    /// Channels lie side by side.
    pub(crate) channels_last: bool,
}

/// Convolution: `x` and `w` give `y`, or one of the three is the result of the backward pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Convolution {
    pub(crate) x: Shape,
    pub(crate) w: Shape,
    pub(crate) y: Shape,
    pub(crate) finds_w: bool,
}

impl Shape {
    fn bytes(&self) -> u64 {
        self.sizes.iter().product::<u64>() * self.element
    }

    /// Number of positions of one channel.
    fn positions(&self) -> u64 {
        self.sizes.get(2..).map_or(1, |sizes| sizes.iter().product())
    }

    fn channels(&self) -> u64 {
        self.sizes.get(1).copied().unwrap_or(1)
    }

    /// Bytes with as many channels as tensor cores want.
    fn padded(&self, channels: u64) -> u64 {
        let own = self.channels().max(1);
        self.bytes() / own * own.next_multiple_of(channels)
    }
}

impl Convolution {
    pub(crate) fn workspace(&self) -> u64 {
        if self.w.channels() < self.x.channels() {
            // Groups, as in depthwise convolutions.
            return 0;
        }
        if self.x.channels_last { self.beside_each_other() } else { self.apart() }
    }

    /// One filter of one position, at each position.
    fn is_pointwise(&self) -> bool {
        self.w.positions() == 1 && self.x.positions() == self.y.positions()
    }

    /// Channels side by side, as tensor cores want them: nothing is laid out anew.
    fn beside_each_other(&self) -> u64 {
        let padding: u64 = [&self.x, &self.y]
            .iter()
            .filter(|shape| shape.channels() % 4 != 0)
            .map(|shape| shape.padded(4))
            .sum();
        let split = match (self.finds_w, self.is_pointwise()) {
            (false, _) => 0,
            (true, true) => (128 * self.w.bytes()).min(5 << 20),
            (true, false) => self.split(),
        };
        padding + split
    }

    /// Channels apart: all three are laid out anew, unless each position is a product of its own.
    fn apart(&self) -> u64 {
        // Tensor cores take 8 channels of 2-byte types at once.
        let padded = |shape: &Shape| if self.in_fours() { shape.bytes() } else { shape.padded(8) };
        let both = padded(&self.x) + padded(&self.y);
        if self.is_pointwise() {
            let samples = self.x.sizes.first().copied().unwrap_or(1);
            // A gradient of each sample in 4-byte numbers, for a sum.
            let gradients = samples * self.w.bytes() / self.x.element.max(1) * 4;
            return match (self.finds_w, self.x.positions().is_multiple_of(4)) {
                (false, true) => 0,
                (true, true) if gradients <= both => gradients,
                _ => both,
            };
        }
        // A filter of one position lies the same in both layouts.
        let filter = if self.w.positions() > 1 { padded(&self.w) } else { 0 };
        both + filter + if self.finds_w { self.split() } else { 0 }
    }

    fn in_fours(&self) -> bool {
        self.x.element == 4
    }

    /// Partial gradients of a filter, for a sum.
    fn split(&self) -> u64 {
        let filter = self.w.bytes();
        match self.in_fours() {
            true => (14 * filter).min(8 << 20),
            false if filter < 1 << 20 => (26 * filter).min(5 << 19),
            false => 0,
        }
    }
}

/// Bytes of attention, in both passes. PyTorch itself allocates the queries' gradient.
pub(crate) const ATTENTION: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(element: u64, sizes: [u64; 4], channels_last: bool) -> Shape {
        Shape { element, sizes: sizes.to_vec(), channels_last }
    }

    /// Bytes of a convolution of a square filter over square images, forward and for its filter.
    fn bytes(element: u64, [n, c, h, k, r, stride]: [u64; 6], last: bool) -> [u64; 2] {
        let x = shape(element, [n, c, h, h], last);
        let w = shape(element, [k, c, r, r], last);
        let y = shape(element, [n, k, h / stride, h / stride], last);
        [false, true].map(|finds_w| {
            Convolution { x: x.clone(), w: w.clone(), y: y.clone(), finds_w }.workspace()
        })
    }

    #[test]
    fn convolution_workspaces_are_near_h200() {
        // Element, convolution, channels last, and the bytes of the two passes.
        let measured = [
            (4, [32, 3, 224, 64, 7, 2], false, [122_065_680, 134_522_000]),
            (4, [32, 128, 56, 128, 3, 2], false, [64_815_120, 73_073_319]),
            (4, [32, 128, 28, 128, 3, 1], false, [26_279_952, 34_538_151]),
            (4, [32, 128, 28, 512, 1, 1], false, [0, 8_388_608]),
            (4, [32, 512, 7, 2048, 1, 1], false, [16_056_336, 16_056_336]),
            (2, [32, 3, 224, 64, 7, 2], false, [77_120_528, 83_242_128]),
            (2, [32, 128, 28, 128, 3, 1], false, [13_139_984, 15_499_655]),
            (2, [32, 256, 56, 64, 1, 1], false, [0, 2_097_152]),
            (2, [32, 128, 56, 128, 3, 2], true, [0, 3_539_535]),
            (2, [32, 256, 14, 256, 3, 1], true, [0, 0]),
            (2, [32, 3, 224, 64, 7, 2], true, [12_870_160, 13_071_247]),
        ];
        for (element, convolution, last, found) in measured {
            let rule = bytes(element, convolution, last);
            for (rule, found) in rule.into_iter().zip(found) {
                let most = (found / 8).max(1 << 20);
                assert!(rule.abs_diff(found) <= most, "{convolution:?}: {rule}, and not {found}");
            }
        }
    }
}
