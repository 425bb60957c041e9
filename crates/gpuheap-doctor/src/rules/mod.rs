//! Rules of the doctor. Each is a file, with a folder of the same name for its fixtures. On the
//! machines `fires*.machine` the rule has findings, and on `quiet*.machine` it has none. A new rule
//! is such a file, such a folder, and its name in the lists below.

mod g01;
mod g02;
mod g03;
mod g04;
mod g05;
mod g06;
mod g07;
mod g08;
mod g09;
mod g10;
mod g11;
mod g12;
mod g13;
mod g14;
mod g15;
mod g16;
mod p01;
mod p02;
mod p03;
mod p04;
mod p05;
mod p06;
mod p07;
mod p08;
mod p09;
mod p10;
mod p11;
mod p12;
mod p13;
mod p14;
mod p15;
mod p16;
mod p17;
mod p18;
mod p19;
mod p20;
mod p21;
mod p22;
mod p23;
mod p24;
mod w01;
mod w02;
mod w03;
mod w04;
mod w05;
mod w06;
mod w07;
mod w08;
mod w09;
mod w10;
mod w11;
mod w12;
mod w13;
mod w14;
mod w15;

use crate::rule::Rule;

/// All rules, by id.
pub const RULES: &[Rule] = &[
    g01::RULE,
    g02::RULE,
    g03::RULE,
    g04::RULE,
    g05::RULE,
    g06::RULE,
    g07::RULE,
    g08::RULE,
    g09::RULE,
    g10::RULE,
    g11::RULE,
    g12::RULE,
    g13::RULE,
    g14::RULE,
    g15::RULE,
    g16::RULE,
    p01::RULE,
    p02::RULE,
    p03::RULE,
    p04::RULE,
    p05::RULE,
    p06::RULE,
    p07::RULE,
    p08::RULE,
    p09::RULE,
    p10::RULE,
    p11::RULE,
    p12::RULE,
    p13::RULE,
    p14::RULE,
    p15::RULE,
    p16::RULE,
    p17::RULE,
    p18::RULE,
    p19::RULE,
    p20::RULE,
    p21::RULE,
    p22::RULE,
    p23::RULE,
    p24::RULE,
    w01::RULE,
    w02::RULE,
    w03::RULE,
    w04::RULE,
    w05::RULE,
    w06::RULE,
    w07::RULE,
    w08::RULE,
    w09::RULE,
    w10::RULE,
    w11::RULE,
    w12::RULE,
    w13::RULE,
    w14::RULE,
    w15::RULE,
];
