//! Plans that cuDNN offers for a convolution, with their workspaces.
//!
//! A program chooses among the plans. PyTorch takes the first plan whose workspace it can allocate.
//! In benchmark mode, it allocates the workspace of the greediest plan (the plan with the largest
//! workspace), times the plans, and keeps the fastest.
//!
//! Convolutions of common models are in a table of measurements (`measured.txt`). Other
//! convolutions follow rules (`rules.txt`). The table and the rules were made from the plans of
//! 14,565 convolutions. The plans are from cuDNN 9.19 with PyTorch 2.11 on an H200 (driver 580.159,
//! 2026-11-24). A shape counts once for each combination of pass, type and layout. Another 39 rows
//! are requests of three programs on that H200 (2026-11-28). Rules for 4-byte numbers were fitted
//! to the first 7,114 convolutions, because a fit to all convolutions was worse for three
//! dimensions. Every fifth shape was held out to test the rules. For the 2,276 test convolutions
//! with 2-byte numbers, the rules are within 3 % or 1 MiB for 82 % of the first plans, 84 % of the
//! fastest, and 57 % of the greediest. For grouped convolutions, the shares are 75 %, 75 % and
//! 47 %. For other cards, plans are estimates.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::convolution::{Convolution, Pass};
use super::fourier;

/// Plan of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Workspace, in bytes.
    pub(crate) workspace: u64,
    /// Number of faster plans of the convolution.
    pub(crate) rank: u32,
    /// `true` if the plan rounds 4-byte numbers for tensor cores (TF32).
    pub(crate) rounds: bool,
}

/// Measured workspaces of a convolution's plans, in bytes. If a workspace is `None`, `rules.txt`
/// has a rule for it.
struct Measured {
    first: Option<u64>,
    /// Largest workspace of a plan without Fourier transforms.
    greediest: Option<u64>,
    /// Workspace of the fastest plan.
    fastest: Option<u64>,
    has_fourier: Option<bool>,
}

/// Line of a tree of rules.
#[derive(Debug)]
enum Line {
    /// If the figure `number` is at most `most`, the next line of the tree applies. Otherwise, the
    /// line with the index `other` applies.
    Branch {
        number: &'static str,
        most: f64,
        other: usize,
    },
    Leaf(Formula),
}

/// Formula for a plan's workspace: the size of the tensors copied to it, plus partial results.
#[derive(Clone, Copy, Debug)]
struct Formula {
    /// Copied tensors: `x` input, `w` filter, `y` output. A capital letter means padded channels.
    copies: &'static str,
    /// Multiple to which a group's channels are padded; `None` for the smallest multiple that
    /// tensor cores accept.
    channels: Option<u64>,
    /// Maximum number of groups that are copied.
    groups: u64,
    partial: Partial,
}

#[derive(Clone, Copy, Debug)]
enum Partial {
    None,
    /// This many results in 4-byte numbers.
    Results(u64),
    Bytes(u64),
    /// The work is split into parts, and each part has a result in 4-byte numbers. With all parts,
    /// each multiprocessor computes about `times` tiles of `rows` by `columns`.
    Split {
        rows: u64,
        columns: u64,
        times: f64,
    },
}

/// Decision trees of `rules.txt`, keyed by title. A title has the plan, the bytes of an element,
/// the layout and the pass. A plan is, for example, `rest` (the greediest) or `win` (the fastest).
type Trees = HashMap<&'static str, Vec<Line>>;

impl Convolution {
    /// Returns the plans in cuDNN's order of preference. The list is never empty.
    pub(crate) fn plans(&self) -> Vec<Plan> {
        let wide = self.x.element != 2;
        let sought = |what| self.by_rule(what);
        let mut first = sought("first").unwrap_or(0);
        let mut greediest = sought("rest").unwrap_or(first);
        // No plan has a larger workspace than the greediest. So if the rule for the fastest plan
        // returns more, the rule is wrong, and the first plan's workspace is used instead.
        let mut fastest = sought("win").filter(|win| *win <= greediest).unwrap_or(first);
        let mut has_fourier = self.has_fourier();
        if let Some(measured) = measured().get(&self.fingerprint()) {
            first = measured.first.unwrap_or(first);
            greediest = measured.greediest.unwrap_or(greediest);
            fastest =
                measured.fastest.unwrap_or(if fastest <= greediest { fastest } else { first });
            has_fourier = measured.has_fourier.unwrap_or(has_fourier);
        }
        let mut plans = vec![
            Plan { workspace: first, rank: 1, rounds: wide },
            Plan { workspace: fastest, rank: 0, rounds: wide },
            Plan { workspace: greediest.max(first).max(fastest), rank: 4, rounds: wide },
        ];
        if wide {
            // Plans for programs that do not allow TF32.
            let exact = |what, rank| {
                let workspace = sought(what).unwrap_or(0);
                Plan { workspace, rank, rounds: false }
            };
            plans.extend([exact("first0", 2), exact("rest0", 3)]);
        }
        if has_fourier {
            plans.push(Plan { workspace: fourier::workspace(self), rank: 5, rounds: false });
        }
        plans
    }

    fn tree(&self, what: &str) -> Option<&'static [Line]> {
        let element = if self.x.element == 2 { 2 } else { 4 };
        let layout = if self.channels_last { "last" } else { "first" };
        let pass = match self.pass {
            Pass::Forward => "forward",
            Pass::Input => "input",
            Pass::Filter => "filter",
        };
        let title = format!("{what} {element} {layout} {pass}");
        trees().get(title.as_str()).map(Vec::as_slice)
    }

    fn leaf(&self, what: &str) -> Option<Formula> {
        let tree = self.tree(what)?;
        let mut at = 0;
        loop {
            match tree.get(at)? {
                Line::Leaf(formula) => return Some(*formula),
                Line::Branch { number, most, other } => {
                    at = if self.number(number)? <= *most { at + 1 } else { *other };
                }
            }
        }
    }

    fn by_rule(&self, what: &str) -> Option<u64> {
        let formula = self.leaf(what)?;
        let plain = self.padded(1);
        let least = if self.x.element == 2 { 8 } else { 4 };
        let padded = self.padded(formula.channels.unwrap_or(least));
        let copies = formula.copies.chars().map(|letter| match letter {
            'x' => plain[0],
            'w' => plain[1],
            'y' => plain[2],
            'X' => padded[0],
            'W' => padded[1],
            'Y' => padded[2],
            _ => 0,
        });
        let copies = copies.fold(0, u64::saturating_add);
        let copies = copies / self.groups() * self.groups().min(formula.groups);
        let partial = match formula.partial {
            Partial::None => 0,
            Partial::Results(count) => self.result().saturating_mul(count),
            Partial::Bytes(bytes) => bytes,
            Partial::Split { rows, columns, times } => {
                let parts = (times / self.tiles(rows, columns)) as u64;
                if parts > 1 { self.result().saturating_mul(parts) } else { 0 }
            }
        };
        Some(copies.saturating_add(partial))
    }

    fn has_fourier(&self) -> bool {
        self.leaf("fourier").is_some_and(|leaf| leaf.copies == "yes")
    }

    /// Returns the convolution's key in `measured.txt`. The key is the FNV-1a hash of its sizes.
    fn fingerprint(&self) -> u64 {
        let head = [self.pass as u64, self.x.element, u64::from(self.channels_last)];
        let window = &self.window;
        let lists =
            [&self.x.sizes, &self.w.sizes, &window.stride, &window.padding, &window.dilation];
        let numbers = head.iter().chain(lists.into_iter().flatten());
        numbers.flat_map(|number| number.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

fn trees() -> &'static Trees {
    static TREES: OnceLock<Trees> = OnceLock::new();
    TREES.get_or_init(|| {
        let mut trees = Trees::new();
        let mut lines = include_str!("rules.txt").lines().peekable();
        while let Some(title) = lines.next() {
            let mut tree = Vec::new();
            add_subtree(&mut lines, &mut tree);
            trees.insert(title, tree);
        }
        trees
    })
}

/// Adds the subtree that begins with the next line. If the line has an unknown form, adds nothing.
fn add_subtree(lines: &mut dyn Iterator<Item = &'static str>, tree: &mut Vec<Line>) {
    let words: Vec<&'static str> = lines.next().unwrap_or("").split(' ').collect();
    match words[..] {
        ["?", number, most] => {
            let at = tree.len();
            let most = most.parse().unwrap_or(0.0);
            tree.push(Line::Branch { number, most, other: 0 });
            add_subtree(lines, tree);
            let next = tree.len();
            if let Some(Line::Branch { other, .. }) = tree.get_mut(at) {
                *other = next;
            }
            add_subtree(lines, tree);
        }
        ["=", copies, ref partial @ ..] => {
            let (copies, groups) = copies.split_once('/').unwrap_or((copies, ""));
            let letters = copies.trim_end_matches(|it: char| it.is_ascii_digit());
            // In `xw32`, a number of channels follows the letters of the copied tensors. In `0`, no
            // tensor is copied, and the digit is not a number of channels.
            let channels = copies[letters.len()..].parse().ok().filter(|_| !letters.is_empty());
            let groups = groups.parse().unwrap_or(u64::MAX);
            let partial = Partial::read(partial);
            tree.push(Line::Leaf(Formula { copies: letters, channels, groups, partial }));
        }
        _ => {}
    }
}

impl Partial {
    fn read(words: &[&str]) -> Self {
        let number = |text: &str| text.parse().unwrap_or(0.0);
        match *words {
            ["results", count] => Self::Results(number(count) as u64),
            ["mib", count] => Self::Bytes((number(count) * (1 << 20) as f64) as u64),
            ["split", tile, times] => {
                let (rows, columns) = tile.split_once('x').unwrap_or(("1", "1"));
                let [rows, columns] = [rows, columns].map(|text| text.parse().unwrap_or(1));
                Self::Split { rows, columns, times: number(times) }
            }
            _ => Self::None,
        }
    }
}

fn measured() -> &'static HashMap<u64, Measured> {
    static MEASURED: OnceLock<HashMap<u64, Measured>> = OnceLock::new();
    MEASURED.get_or_init(|| include_str!("measured.txt").lines().filter_map(read_row).collect())
}

/// Reads a row of `measured.txt`: a convolution's fingerprint, and the workspaces of the first, the
/// greediest and the fastest plan. A last `1` means that a plan uses Fourier transforms. `-` means
/// unmeasured.
fn read_row(line: &str) -> Option<(u64, Measured)> {
    let mut words = line.split(' ');
    let fingerprint = u64::from_str_radix(words.next()?, 16).ok()?;
    let mut number = || words.next().map(|word| u64::from_str_radix(word, 16).ok());
    let (first, greediest, fastest) = (number()?, number()?, number()?);
    let has_fourier = number()?.map(|number| number == 1);
    Some((fingerprint, Measured { first, greediest, fastest, has_fourier }))
}

#[cfg(test)]
mod tests {
    use super::super::convolution::{Shape, Window};
    use super::*;

    /// Returns a convolution of square images with a square filter. The numbers are samples, input
    /// channels, the images' edge, output channels, the filter's edge, stride, padding, dilation
    /// and groups.
    fn convolution(pass: Pass, element: u64, last: bool, numbers: [u64; 9]) -> Convolution {
        let [n, c, h, k, r, stride, padding, dilation, groups] = numbers;
        let y = (h + 2 * padding - dilation * (r - 1) - 1) / stride + 1;
        let strides = [0, if last { 1 } else { 2 }];
        let shape = |sizes: [u64; 4]| Shape::new(element, sizes.to_vec(), &strides);
        let tensors = [[n, c, h, h], [k, c / groups, r, r], [n, k, y, y]].map(shape);
        let [stride, padding, dilation] = [stride, padding, dilation].map(|it| vec![it, it]);
        Convolution::new(pass, tensors, Window { stride, padding, dilation })
    }

    /// Compares the workspaces that the rules return with workspaces measured on an H200.
    /// `rules.txt` was not fitted to these convolutions, and `measured.txt` does not contain them.
    #[test]
    fn rules_are_near_h200() {
        let measured = [
            (Pass::Forward, 4, false, [16, 16, 17, 16, 1, 1, 0, 1, 1], 0, 4_457_472),
            (Pass::Forward, 4, true, [512, 16, 28, 16, 8, 2, 14, 4, 1], 25_755_664, 32_178_192),
            (Pass::Input, 4, false, [8, 3, 96, 16, 11, 2, 5, 1, 1], 0, 5_788_176),
            (Pass::Input, 4, true, [100, 8, 35, 192, 1, 1, 0, 1, 1], 0, 98_000_016),
            (Pass::Filter, 4, false, [3, 512, 7, 512, 3, 2, 0, 1, 1], 18_432, 19_230_864),
            (Pass::Filter, 4, true, [50, 128, 64, 311, 1, 1, 0, 1, 1], 14_012_672, 1_959_591_952),
            (Pass::Forward, 2, false, [8, 512, 28, 512, 1, 1, 1, 1, 1], 13_795_344, 13_795_584),
            (Pass::Forward, 2, true, [8, 384, 224, 2, 3, 2, 0, 1, 1], 1_632_400, 308_703_280),
            (Pass::Input, 2, false, [32, 224, 100, 100, 2, 4, 1, 1, 1], 148_045_840, 148_086_800),
            (Pass::Filter, 2, false, [5, 192, 75, 192, 5, 3, 2, 1, 1], 13_843_216, 13_843_584),
            (
                Pass::Forward,
                2,
                false,
                [128, 960, 32, 960, 3, 1, 1, 1, 24],
                807_075_987,
                807_075_987,
            ),
            (Pass::Input, 2, false, [4, 672, 64, 672, 3, 1, 1, 1, 12], 29_811_840, 51_216_531),
            (Pass::Filter, 2, false, [64, 256, 32, 256, 3, 2, 1, 1, 16], 43_589_999, 43_786_847),
            (Pass::Forward, 2, true, [100, 320, 32, 320, 5, 1, 2, 1, 10], 0, 105_292_928),
            (Pass::Input, 2, true, [20, 1024, 16, 1024, 3, 1, 1, 1, 32], 131, 85_606_528),
        ];
        for (pass, element, last, numbers, first, greediest) in measured {
            let plans = convolution(pass, element, last, numbers).plans();
            let most = plans.iter().map(|plan| plan.workspace).max().unwrap_or(0);
            for (rule, found) in [(plans[0].workspace, first), (most, greediest)] {
                let near = (found / 33).max(1 << 20);
                assert!(rule.abs_diff(found) <= near, "{pass:?} {numbers:?}: {rule}, not {found}");
            }
        }
    }

    #[test]
    fn table_has_plans_of_dcgan() {
        // The second layer of the discriminator.
        let it = convolution(Pass::Forward, 4, false, [64, 64, 32, 128, 4, 2, 1, 1, 1]);
        let measured = &measured()[&it.fingerprint()];
        assert_eq!(Some(it.plans()[0].workspace), measured.first);
        assert!(measured.greediest >= measured.first);
        // A layer of ResNet-50 in benchmark mode. `measured.txt` has only these two workspaces.
        let it = convolution(Pass::Forward, 2, false, [64, 64, 72, 256, 1, 1, 0, 1, 1]);
        let plans = it.plans();
        assert_eq!([plans[1].workspace, plans[2].workspace], [272, 212_336_896]);
    }

    #[test]
    fn only_large_depthwise_filters_spill() {
        let half = |pass, last, numbers| {
            let mut convolution = convolution(pass, 2, last, numbers);
            convolution.x.is_half = true;
            convolution.spills()
        };
        let numbers = [16, 672, 14, 672, 5, 1, 2, 1, 672];
        assert!(half(Pass::Filter, false, numbers));
        assert!(!half(Pass::Forward, false, numbers) && !half(Pass::Filter, true, numbers));
        assert!(!half(Pass::Filter, false, [16, 672, 14, 672, 3, 1, 1, 1, 672]));
        assert!(!half(Pass::Filter, false, [16, 672, 14, 672, 5, 2, 2, 1, 672]));
        assert!(!half(Pass::Filter, false, [16, 672, 14, 672, 5, 1, 2, 1, 1]));
        assert!(!convolution(Pass::Filter, 2, false, numbers).spills());
    }

    #[test]
    fn transforms_are_only_greediest_plan() {
        let it = convolution(Pass::Forward, 4, false, [64, 256, 56, 64, 1, 1, 0, 1, 1]);
        let plans = it.plans();
        let [(slowest, first), (_, last)] = [0, plans.len() - 1].map(|at| (plans.len(), plans[at]));
        // Measured on an H200.
        assert_eq!(last.workspace, 1_107_361_792);
        assert!(last.rank as usize == slowest - 1 && !last.rounds && first.rank == 1);
    }

    #[test]
    fn tree_lines_name_known_numbers() {
        let it = convolution(Pass::Forward, 4, false, [1, 3, 8, 4, 3, 1, 1, 1, 1]);
        let mut branches = 0;
        for (title, tree) in trees() {
            for line in tree {
                if let Line::Branch { number, other, .. } = line {
                    assert!(it.number(number).is_some(), "{title}: {number}");
                    assert!(*other < tree.len(), "{title}");
                    branches += 1;
                }
            }
        }
        assert_eq!(trees().len(), 58);
        assert!(branches > 400, "{branches}");
        assert!(measured().len() > 2900);
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        for pass in [Pass::Forward, Pass::Input, Pass::Filter] {
            let shape = || Shape::new(4, vec![u64::MAX; 4], &[1, 1]);
            let tensors = [shape(), shape(), shape()];
            let window = Window { stride: vec![2, 0], ..Window::default() };
            assert!(!Convolution::new(pass, tensors, window).plans().is_empty());
            let none = Shape::new(4, vec![0; 4], &[]);
            let tensors = [none.clone(), none.clone(), none];
            assert!(!Convolution::new(pass, tensors, Window::default()).plans().is_empty());
        }
    }
}
