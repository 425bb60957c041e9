//! Rules of the doctor, in a file for each subject.
//!
//! The folder `tests/rules` has one folder of fixtures for each rule. The rule has findings on the
//! machines `fires*.machine`, and no findings on `quiet*.machine`. A new rule needs a constant,
//! such a folder, a section of `rules.md`, and its name in the list below.

mod containers;
mod device;
mod figures;
mod logs;
mod processes;
mod servers;
mod wsl2;

use self::containers::{P15, P16, P17, P20};
use self::device::{G04, G05, G07, G08, G09, G12, G13, G14, G16};
use self::figures::{G01, G02, G03, G11, P08, P11, P13, P14, P24, P25};
use self::logs::{G06, G15};
use self::processes::{P01, P02, P03, P04, P05, P06, P07, P19, P21, P22, P23};
use self::servers::{G10, P09, P10, P12, P18};
use self::wsl2::{W01, W02, W03, W04, W05, W06, W07, W08, W09, W10, W11, W12, W13, W14, W15};
use crate::rule::Rule;

/// All rules, by id.
pub const RULES: &[Rule] = &[
    G01, G02, G03, G04, G05, G06, G07, G08, G09, G10, G11, G12, G13, G14, G15, G16, P01, P02, P03,
    P04, P05, P06, P07, P08, P09, P10, P11, P12, P13, P14, P15, P16, P17, P18, P19, P20, P21, P22,
    P23, P24, P25, W01, W02, W03, W04, W05, W06, W07, W08, W09, W10, W11, W12, W13, W14, W15,
];
