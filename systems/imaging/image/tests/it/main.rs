//! Tests of images as servers and clients use them. They are one binary.

mod checks;
mod common;
mod corpus;
mod damage;
mod devices;
mod doubt;
mod free;
mod ndz;
mod round_trip;
mod targets;
