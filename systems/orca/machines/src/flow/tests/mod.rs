mod apart;
mod chaos;
mod golden;
mod parity;
mod path;
mod storm;
mod theory;
