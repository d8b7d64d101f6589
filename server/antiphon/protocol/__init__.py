"""The protocols: conversion of bytes to messages and back, without I/O."""
